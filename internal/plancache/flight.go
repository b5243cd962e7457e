package plancache

import (
	"context"
	"time"
)

// flight is a lookup that callers wait for. fetch owns plan and queried until done is closed.
type flight[T any] struct {
	done    chan struct{}
	plan    *plan[T]
	queried bool // the source has answered
}

// fetch resolves a plan and wakes all its callers. The context has the first caller's values, for
// the spans of the calls to Redis, and does not end. The source does not get these values, which
// may belong to one request alone, such as a transaction.
func (c *Cache[T]) fetch(ctx context.Context, client, key string, f *flight[T], cached *plan[T]) {
	f.plan, f.queried = c.resolve(ctx, client, key, cached)
	c.mu.Lock()
	if c.flights[key] == f { // else there was an Invalidate
		delete(c.flights, key)
		c.keepLocked(key, f.plan)
	}
	c.mu.Unlock()
	close(f.done)
}

// resolve reads a plan from Redis, or from the source if Redis does not have it. It reports whether
// the source has answered. cached is the process' plan; shared is Redis' plan.
func (c *Cache[T]) resolve(ctx context.Context, client, key string, cached *plan[T]) (found *plan[T], queried bool) {
	shared, err := c.readRedis(ctx, key)
	switch now := time.Now(); {
	case shared.fresh(now) && !cached.newer:
		return shared.usedUntil(now, shared.ends), false
	case err != nil && cached.fresh(now):
		return cached.usedUntil(now, cached.ends), false
	}

	admitted := c.waiting.Add(1) <= maxWaiting && c.queries.acquire(sourceTimeout)
	c.waiting.Add(-1)
	if !admitted {
		return c.fallback(errBusy, cached, &shared), false
	}
	token, err := c.takeToken(ctx, key)
	began := time.Now()
	// Without a plan in Redis, the source is still queried only once per life. Either Redis failed,
	// so it cannot report an Invalidate, or the same token shows that there was none.
	if cached.fresh(began) && !cached.stored && (err != nil || token == cached.token) {
		c.queries.release()
		return cached.usedUntil(began, cached.ends), false
	}
	answer, err := c.query(client)
	now := time.Now()
	c.health.record(err, now.Sub(began), c.config.Reason)
	if err != nil {
		return c.fallback(err, cached, &shared), false
	}
	answer.ends, answer.token = now.Add(c.config.Life), token
	answer.retained = answer.err == nil && c.retains(now, cached, &shared)
	if token != "" {
		answer.stored, err = c.store(ctx, key, answer)
		answer.invalid = err == nil && !answer.stored // else there was an Invalidate
	}
	answer.newer = cached.newer && !answer.stored
	if answer.invalid {
		return &answer, true
	}
	return answer.usedUntil(time.Now(), answer.ends), true
}

// retains reports whether Redis keeps a client's plan longer than its life. Redis does so only for
// clients that come again after a life: anybody can invent clients and look up each once.
func (c *Cache[T]) retains(now time.Time, cached, shared *plan[T]) bool {
	switch {
	case cached.retained || shared.retained:
		return true
	case !cached.usable(now) || cached.err != nil || now.Before(cached.ends):
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.retainedSince) >= retention {
		c.retainedSince, c.retainLeft = now, maxRetained
	}
	c.retainLeft--
	return c.retainLeft >= 0
}
