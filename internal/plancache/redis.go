package plancache

import (
	"context"
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// calls bounds the calls to Redis. After a failure there are no calls for a second, then a single
// one.
type calls struct {
	timeout   time.Duration
	semaphore semaphore                 // acquired by each call until its end
	failed    atomic.Pointer[time.Time] // the last failure; nil once Redis answers
	stuck     goroutine.Stuck           // of the contexts that are borrowed
}

// call makes a call, and waits for at most the timeout. An error reply is not a failure. The call
// has the values of a context, but not its end.
func call[T any](values context.Context, c *calls, f func(context.Context) (T, error)) (T, error) {
	var none T
	began, failed := time.Now(), c.failed.Load()
	if failed != nil && (began.Sub(*failed) < recheck || !c.failed.CompareAndSwap(failed, &began)) {
		return none, dispatch.ErrLate // another call tries
	}
	// Many calls may wait while Redis is well. Once it fails, they stop waiting.
	for !c.semaphore.acquire(c.timeout) {
		if c.failed.Load() != nil || time.Since(began) >= sourceTimeout {
			return none, dispatch.ErrLate
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	value, err := goroutine.Bounded(ctx, 0, func() (T, error) {
		defer c.semaphore.release()
		return f(goroutine.Borrow(ctx, values, &c.stuck))
	})
	if err == nil || redisstore.IsErrorReply(err) {
		c.failed.Store(nil)
		return value, err
	}
	now := time.Now()
	c.failed.Store(&now)
	return none, err
}

// readRedis returns Redis' plan, or the zero plan. The error means that Redis does not answer.
func (c *Cache[T]) readRedis(ctx context.Context, key string) (plan[T], error) {
	return call(ctx, &c.calls, func(ctx context.Context) (plan[T], error) {
		sent := time.Now()
		text, left, err := c.config.Redis.Get(ctx, key)
		if err != nil {
			return plan[T]{}, err
		}
		return c.decode(text, sent, left), nil
	})
}

// takeToken returns the token that must still be in Redis when the answer is stored. The error
// means that Redis does not write.
func (c *Cache[T]) takeToken(ctx context.Context, key string) (string, error) {
	return call(ctx, &c.calls, func(ctx context.Context) (string, error) {
		return c.config.Redis.Token(ctx, key, rand.Text(), tokenLife)
	})
}

// store stores a plan in Redis, and reports whether its token was still there.
func (c *Cache[T]) store(ctx context.Context, key string, answer plan[T]) (bool, error) {
	text, life := c.encode(answer)
	return call(ctx, &c.calls, func(ctx context.Context) (bool, error) {
		return c.config.Redis.Store(ctx, key, answer.token, text, life)
	})
}

// forget removes a plan from Redis. It is not bounded like a lookup, and calls a failing Redis too:
// its caller wants to know whether other processes will notice.
func (c *Cache[T]) forget(ctx context.Context, key string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	bounded, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	borrowed := goroutine.Borrow(context.Background(), ctx, &c.calls.stuck)
	defer borrowed.End()
	_, err := goroutine.Bounded(bounded, 0, func() (struct{}, error) { // a late call still takes effect
		return struct{}{}, c.config.Redis.Forget(borrowed, key, rand.Text(), tokenLife)
	})
	return err
}
