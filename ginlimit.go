// Package ginlimit limits the rate of requests to a Gin application, counted in Redis.
//
//	router.Use(ginlimit.New(rdb, ginlimit.PerMinute(100)))
//
// gives every client address a token bucket in Redis: the same answer whichever process of the
// application asks, in one round trip, by one atomic script. A refused request is answered 429 and
// consumes nothing. For several limits, or limits per route, make one [Limiter] and take a
// [Limiter.Handler] for each; its other methods limit anything else under a key of one's own.
package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

// New returns middleware that limits every client to limit: [NewLimiter] and [Limiter.Handler] in one.
//
// It panics on a bad configuration, with all faults at once. It does not need Redis to be there yet.
func New(rdb redis.UniversalClient, limit Limit, opts ...Option) gin.HandlerFunc {
	l, faults := newRedisLimiter(rdb, opts)
	handler, err := l.handler(limit, nil)
	if err := errors.Join(append(faults, err)...); err != nil {
		panic(err)
	}
	return handler
}

// Handler returns middleware that limits every client to limit.
//
// With [WithLimits] there are more. It sets X-RateLimit-Limit, X-RateLimit-Remaining and
// X-RateLimit-Reset, and aborts a refused request with 429, and with
// Retry-After unless no waiting helps. Where several handlers decide on one request, the headers tell of the one
// closest to exhaustion. It panics on a bad configuration, with all faults at once.
func (l *Limiter) Handler(limit Limit, opts ...Option) gin.HandlerFunc {
	handler, err := l.handler(limit, opts)
	if err != nil {
		panic(err)
	}
	return handler
}

func (l *Limiter) handler(limit Limit, opts []Option) (gin.HandlerFunc, error) {
	if l.store == nil {
		return nil, errNotMade
	}
	cfg, _ := l.defaults.with(opts)
	r, name, err := cfg.validate(limit)
	if err != nil {
		return nil, err
	}
	r.failure = cfg.failure
	r.share = r.shareOf(l.defaults.replicas)
	h := &handler{config: cfg, limiter: l, rules: r, name: name, keyName: Key(name, "")}
	return h.serve, nil
}

// FromContext returns what ginlimit decided on the request, for handlers and access logs.
//
// Where several handlers decided, it is the refusal, or the Result closest to exhaustion. It is false
// where none has decided.
func FromContext(c *gin.Context) (Result, bool) {
	if d := decidedOn(c); d != nil {
		return d.result, true
	}
	return Result{}, false
}

// handler limits the requests that pass through it.
type handler struct {
	config
	limiter *Limiter
	rules   rules
	name    string
	keyName string // what the keys of its clients begin with
	warned  atomic.Bool
}

func (h *handler) serve(c *gin.Context) {
	client, err := h.config.key(c)
	if err == nil && client == "" {
		err = fmt.Errorf("%w: the key function returned none", ErrNoKey)
	}
	if err != nil {
		h.fail(c, err)
		return
	}
	result, key, err := h.decide(c.Request.Context(), client)
	if err != nil {
		h.fail(c, err)
		return
	}
	h.record(c, key, result)
	if !result.Allowed {
		c.Status(http.StatusTooManyRequests)
		c.Abort()
		h.denied(c, result)
	}
}

// decide returns the decision on a client's request, and a hash of the key that was charged.
func (h *handler) decide(ctx context.Context, client string) (Result, uint64, error) {
	if res, ok := h.rules.settled(1); ok {
		return res, 0, nil
	}
	a := h.limiter.ask(opDecide, &h.rules)
	defer h.limiter.release(a)
	a.about(h.keyName, client)
	result, err := h.limiter.take(ctx, a, &h.rules, 1)
	return result, a.hash, err
}

func (h *handler) fail(c *gin.Context, err error) {
	status, size := c.Writer.Status(), c.Writer.Size() // -1 until something is written
	h.failed(c, err)
	if c.Writer.Status() != status || c.Writer.Size() != size {
		c.Abort()
	}
}

// decided is what the handlers of a request decided up to one of them. It is not changed once it is set, as a
// copy of the [gin.Context] has the same one.
type decided struct {
	result Result   // the one to tell
	by     *handler // of the last decision
	key    uint64   // the hash of the key that it charged
	before *decided
	fields fields // that tell the last decision, where it is the one to tell
}

// decidedKey is where a [gin.Context] keeps what was decided last.
type decidedKey struct{}

// decidedOn returns what was decided on a request, or nil.
func decidedOn(c *gin.Context) *decided {
	v, _ := c.Get(decidedKey{})
	d, _ := v.(*decided)
	return d
}

// record keeps a Result, and sets the headers if it is the one to tell.
func (h *handler) record(c *gin.Context, key uint64, result Result) {
	before := decidedOn(c)
	for other := before; other != nil; other = other.before {
		if other.key == key && h.shares(other.by) && !h.warned.Swap(true) {
			h.logger.WarnContext(c.Request.Context(),
				"ginlimit: two handlers charge one bucket for one request; if that is not meant, name one of them with WithName",
				"name", h.name)
		}
	}
	now := &decided{result: result, by: h, key: key, before: before}
	if before == nil || !result.Allowed || !before.result.closerThan(result) {
		now.fields.set(c.Writer.Header(), result)
	} else {
		now.result = before.result
	}
	if result.Source == FromLocal && h.limiter.source != FromLocal {
		c.Writer.Header()[headerStatus] = []string{"degraded"}
	}
	c.Set(decidedKey{}, now)
}

// shares reports whether two handlers have a bucket in common for a key that is the same.
func (h *handler) shares(other *handler) bool {
	if h.limiter.store.String() != other.limiter.store.String() {
		return false
	}
	for i := range h.rules.buckets {
		for j := range other.rules.buckets {
			if h.rules.buckets[i].period == other.rules.buckets[j].period {
				return true
			}
		}
	}
	return false
}
