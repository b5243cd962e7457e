package plancache

import (
	"context"
	"time"
)

// flight is a lookup that many callers may wait for. Plan and asked belong to fetch until done is
// closed.
type flight[T any] struct {
	done  chan struct{}
	plan  *plan[T]
	asked bool // the source has answered
}

// fetch finds a plan, and answers all who wait for it. The context has the values of the first
// caller, for the spans of the calls to Redis, and no end. The source does not get it: it may hold
// what is for one request alone, such as a transaction.
func (c *Cache[T]) fetch(ctx context.Context, client, key string, f *flight[T], known *plan[T]) {
	f.plan, f.asked = c.find(ctx, client, key, known)
	c.mu.Lock()
	if c.flights[key] == f { // there was no Invalidate
		delete(c.flights, key)
		c.keepLocked(key, f.plan)
	}
	c.mu.Unlock()
	close(f.done)
}

// find reads a plan in Redis, or in the source if Redis does not have it. It reports whether the
// source has answered. Known is the plan of the process, kept is that of Redis.
func (c *Cache[T]) find(ctx context.Context, client, key string, known *plan[T]) (found *plan[T], asked bool) {
	kept, err := c.lookUp(ctx, key)
	switch now := time.Now(); {
	case kept.lives(now) && !known.ahead:
		return kept.goBy(now, kept.ends), false
	case err != nil && known.lives(now):
		return known.goBy(now, known.ends), false
	}

	mayAsk := c.waiting.Add(1) <= maxWaiting && c.questions.take(sourceTimeout)
	c.waiting.Add(-1)
	if !mayAsk {
		return c.fallback(errBusy, known, &kept), false
	}
	token, err := c.takeToken(ctx, key)
	began := time.Now()
	// A Redis that stores no plans does not make the source be asked more than once per life.
	// Either it cannot report an Invalidate, or the same token says that there was none.
	if known.lives(began) && !known.stored && (err != nil || token == known.token) {
		c.questions.leave()
		return known.goBy(began, known.ends), false
	}
	answer, err := c.ask(client)
	now := time.Now()
	c.health.note(err, now.Sub(began), c.config.Reason)
	if err != nil {
		return c.fallback(err, known, &kept), false
	}
	answer.ends, answer.token = now.Add(c.config.Life), token
	answer.rested = answer.err == nil && c.rests(now, known, &kept)
	if token != "" {
		answer.stored, err = c.store(ctx, key, answer)
		answer.invalid = err == nil && !answer.stored // there was an Invalidate since
	}
	answer.ahead = known.ahead && !answer.stored
	if answer.invalid {
		return &answer, true
	}
	return answer.goBy(time.Now(), answer.ends), true
}

// rests reports whether Redis keeps a client's plan longer than its life. Only clients that come
// again after a life have that, as anybody can invent clients and ask for each once.
func (c *Cache[T]) rests(now time.Time, known, kept *plan[T]) bool {
	switch {
	case known.rested || kept.rested:
		return true
	case !known.serves(now) || known.err != nil || now.Before(known.ends):
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.restsSince) >= rest {
		c.restsSince, c.restsLeft = now, maxRested
	}
	c.restsLeft--
	return c.restsLeft >= 0
}
