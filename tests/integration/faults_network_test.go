package integration

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Faults of the way to Redis.

func slower(t *testing.T) *site {
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { p.Delay.Store(int64(200 * time.Millisecond)) },
		mend: func() { p.Delay.Store(0) },
	}
}

// slowerThanTheClient has replies come after the client's timeout, and before the limiter's.
func slowerThanTheClient(t *testing.T) *site {
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	return &site{
		rdb:   outageClient(t, redis.Options{Addr: addr}).WithTimeout(20 * time.Millisecond),
		lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { p.Delay.Store(int64(40 * time.Millisecond)) },
		mend: func() { p.Delay.Store(0) },
	}
}

// nameNotFound cuts connections, and then has the server's name be unknown.
func nameNotFound(t *testing.T) *site {
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	var unknown atomic.Bool
	var dialer net.Dialer
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if unknown.Load() {
			return nil, &net.DNSError{Err: "no such host", Name: "redis.example.com", IsNotFound: true}
		}
		return dialer.DialContext(ctx, network, addr)
	}
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr, Dialer: dial}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() {
			unknown.Store(true)
			p.CutAll()
			p.Cut.Store(false)
		},
		mend: func() { unknown.Store(false) },
	}
}

func cut(t *testing.T) *site        { return cutAt(t, 0, redis.Options{}) }
func cutFarAway(t *testing.T) *site { return cutAt(t, 10*time.Millisecond, redis.Options{}) }

func cutFartherDirect(t *testing.T) *site {
	return cutAt(t, 20*time.Millisecond, redis.Options{ContextTimeoutEnabled: true})
}

func cutAt(t *testing.T, distance time.Duration, opts redis.Options) *site {
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	p.Delay.Store(int64(distance))
	opts.Addr = addr
	return &site{
		rdb: outageClient(t, opts), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: p.CutAll,
		mend: func() { p.Cut.Store(false) },
	}
}

func swallowed(t *testing.T) *site {
	p, addr := testkit.StartProxy(t, testkit.StartRedis(t))
	return &site{
		rdb: outageClient(t, redis.Options{Addr: addr}), lasts: 2 * time.Second, degrades: freshKey, bursts: 1,
		fail: func() { p.Swallow.Store(true) },
		mend: func() { p.Swallow.Store(false) },
	}
}
