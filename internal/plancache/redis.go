package plancache

import (
	"context"
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// calls bounds what a cache asks of Redis. After a failure it calls nothing for a second, then it
// lets one call try.
type calls struct {
	timeout time.Duration
	places  places                    // each held until its call ends
	lost    atomic.Pointer[time.Time] // when Redis last did not answer; nil once it answers
}

// call makes a call, and waits for its answer no longer than the timeout. An error that Redis
// replies is no failure. The call has the values of a context, not its end.
func call[T any](values context.Context, c *calls, f func(context.Context) (T, error)) (T, error) {
	var none T
	began, lost := time.Now(), c.lost.Load()
	if lost != nil && (began.Sub(*lost) < recheck || !c.lost.CompareAndSwap(lost, &began)) {
		return none, dispatch.ErrLate // another one tries
	}
	// Many may wait while Redis is well. Once it fails, they stop waiting.
	for !c.places.take(c.timeout) {
		if c.lost.Load() != nil || time.Since(began) >= sourceTimeout {
			return none, dispatch.ErrLate
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	value, err := dispatch.Bounded(ctx, 0, func() (T, error) {
		defer c.places.leave()
		return f(dispatch.Borrow(ctx, values))
	})
	if err == nil || redisstore.IsErrorReply(err) {
		c.lost.Store(nil)
		return value, err
	}
	now := time.Now()
	c.lost.Store(&now)
	return none, err
}

// lookUp returns the plan that Redis keeps, or the zero plan. The error says that Redis cannot
// answer.
func (c *Cache[T]) lookUp(ctx context.Context, key string) (plan[T], error) {
	return call(ctx, &c.calls, func(ctx context.Context) (plan[T], error) {
		sent := time.Now()
		text, left, err := c.config.Redis.Get(ctx, key)
		if err != nil {
			return plan[T]{}, err
		}
		return c.decode(text, sent, left), nil
	})
}

// takeToken returns the token that must not change until the answer is stored. The error says that
// Redis writes nothing.
func (c *Cache[T]) takeToken(ctx context.Context, key string) (string, error) {
	return call(ctx, &c.calls, func(ctx context.Context) (string, error) {
		return c.config.Redis.Token(ctx, key, rand.Text(), tokenLife)
	})
}

// store puts a plan into Redis, and reports whether its token was still there. The error says that
// Redis cannot.
func (c *Cache[T]) store(ctx context.Context, key string, answer plan[T]) (bool, error) {
	text, life := c.encode(answer)
	return call(ctx, &c.calls, func(ctx context.Context) (bool, error) {
		return c.config.Redis.Store(ctx, key, answer.token, text, life)
	})
}

// forget removes a plan from Redis. It is no lookup: it needs no place, and tries a lost Redis too,
// as its caller wants to know whether other processes hear of it.
func (c *Cache[T]) forget(ctx context.Context, key string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	bounded, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	lent := dispatch.Borrow(context.Background(), ctx)
	defer lent.End()
	_, err := dispatch.Bounded(bounded, 0, func() (struct{}, error) { // late, it still takes effect
		return struct{}{}, c.config.Redis.Forget(lent, key, rand.Text(), tokenLife)
	})
	return err
}
