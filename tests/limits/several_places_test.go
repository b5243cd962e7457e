package limits_test

import "github.com/redis/go-redis/v9"

// wrap returns a client that may have several servers, as far as a limiter knows.
func wrap(rdb redis.UniversalClient) redis.UniversalClient {
	return struct{ redis.UniversalClient }{rdb}
}
