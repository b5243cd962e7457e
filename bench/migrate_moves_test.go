package bench

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// A move is an application before and after it came to ginlimit, and what its answers say: header fields and, as a
// regular expression, the value of each.
type move struct {
	name                    string
	before                  func(*gin.Engine, *redis.Client) error
	after                   func(*gin.Engine, *ginlimit.Limiter) error
	firstBefore, firstAfter map[string]string // of the first request
	denialBefore            map[string]string
	denialAfter             map[string]string
	withoutRedis            int // the status before of a request without Redis; 0 where there is none
}

// Patterns of a header's value. A test may be a hundred seconds late.
const (
	unixTime    = `^[1-9][0-9]{9}$`
	untilHour   = `^(3600|35[0-9]{2})$`
	untilToken  = `^(180|1[0-7][0-9]|[89][0-9])$` // 20 an hour
	problemType = `^application/problem\+json$`
	plainText   = `^text/plain; charset=utf-8$`
)

var (
	bucketFirst = map[string]string{
		"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^19$", "X-Ratelimit-Reset": untilToken,
	}
	bucketDenial = map[string]string{
		"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^0$", "X-Ratelimit-Reset": untilHour,
		"Retry-After":   untilToken,
		"Cache-Control": "^no-store$", "Content-Type": problemType, "Content-Length": "^[0-9]+$",
	}
)

var moves = []move{
	{
		name: "ulule", before: ululeBefore, after: ululeAfter,
		firstBefore: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^19$", "X-Ratelimit-Reset": unixTime,
		},
		firstAfter: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^19$", "X-Ratelimit-Reset": untilHour,
		},
		denialBefore: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^0$", "X-Ratelimit-Reset": unixTime,
			"Content-Type": plainText,
		},
		denialAfter: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^0$", "X-Ratelimit-Reset": untilHour,
			"Retry-After":   untilHour,
			"Cache-Control": "^no-store$", "Content-Type": problemType, "Content-Length": "^[0-9]+$",
		},
		withoutRedis: http.StatusInternalServerError,
	},
	{
		name: "redis_rate", before: redisRateBefore, after: redisRateAfter,
		firstBefore:  map[string]string{"X-Ratelimit-Remaining": "^19$"},
		firstAfter:   bucketFirst,
		denialBefore: map[string]string{"X-Ratelimit-Remaining": "^0$", "Retry-After": untilToken},
		denialAfter:  bucketDenial,
		withoutRedis: http.StatusInternalServerError,
	},
	{
		name: "JGL", before: jglBefore, after: jglAfter,
		firstBefore: map[string]string{
			"X-Rate-Limit-Limit": "^20$", "X-Rate-Limit-Remaining": "^19$", "X-Rate-Limit-Reset": unixTime,
		},
		firstAfter: bucketFirst,
		denialBefore: map[string]string{
			"X-Rate-Limit-Limit": "^20$", "X-Rate-Limit-Remaining": "^0$",
			"X-Rate-Limit-Reset": unixTime, "Content-Type": plainText,
		},
		denialAfter:  bucketDenial,
		withoutRedis: http.StatusOK,
	},
	{
		name: "tollbooth", before: tollboothBefore, after: tollboothAfter,
		firstBefore: map[string]string{
			"X-Rate-Limit-Limit": `^0\.01$`, "X-Rate-Limit-Duration": "^1$", "X-Rate-Limit-Request-Remote-Addr": "^203",
			"Ratelimit-Limit": "^0$", "Ratelimit-Remaining": "^19$", "Ratelimit-Reset": "^1$",
		},
		firstAfter: bucketFirst,
		denialBefore: map[string]string{
			"X-Rate-Limit-Limit": `^0\.01$`, "X-Rate-Limit-Duration": "^1$", "X-Rate-Limit-Request-Remote-Addr": "^203",
			"Ratelimit-Limit": "^0$", "Ratelimit-Remaining": "^0$", "Ratelimit-Reset": "^1$", "Content-Type": plainText,
			"Content-Length": "^[0-9]+$",
		},
		denialAfter: bucketDenial,
	},
}
