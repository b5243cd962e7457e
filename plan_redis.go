package ginlimit

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// What Redis keeps: each plan as text that expires, and a token while the source is asked for it (see lua/plan.lua).

var planScript = redis.NewScript(planSource)

const (
	unknownPlan  = "unknown"         // the text for a client without a plan
	shortPlan    = "short "          // begins a plan that expires at the end of its life; others expire planRest later
	tokenSuffix  = ":token"          // follows a plan's key in that of its token
	tokenLife    = 2 * sourceTimeout // the source's answer can be stored this long after its token was made
	maxPlanCalls = 8                 // unanswered calls to Redis; each may hold a connection
)

// lookUp returns the plan that Redis keeps, or the zero plan. The error says that Redis cannot tell.
func (p *Plans) lookUp(ctx context.Context, key string) (plan, error) {
	return callRedis(ctx, p, func(ctx context.Context) (plan, error) {
		sent, pipe := time.Now(), p.rdb.Pipeline()
		text, left := pipe.Get(ctx, key), pipe.PTTL(ctx, key)
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return plan{}, err
		}
		return p.decode(text.Val(), sent, left.Val()), nil
	})
}

// decode reads the text of a plan, which expires after left. No text and a foreign one are the zero plan.
func (p *Plans) decode(text string, now time.Time, left time.Duration) plan {
	text, short := strings.CutPrefix(text, shortPlan)
	kept := plan{stored: true, rested: !short && text != unknownPlan}
	if kept.rested {
		left -= planRest
	}
	kept.ends = now.Add(min(left, p.life)) // another process may have a longer life
	if text == unknownPlan {
		kept.err = ErrUnknownClient
		return kept
	}
	for one := range strings.SplitSeq(text, ", ") {
		l, err := ParseLimit(one)
		if err != nil {
			return plan{}
		}
		kept.limits = append(kept.limits, l)
	}
	return kept
}

// encode returns a plan as decode reads it, and for how long Redis keeps it.
func (p *Plans) encode(answer plan) (string, time.Duration) {
	if answer.err != nil {
		return unknownPlan, p.life
	}
	texts := make([]string, len(answer.limits))
	for i, l := range answer.limits {
		texts[i] = l.String()
	}
	text := strings.Join(texts, ", ")
	if answer.rested {
		return text, p.life + planRest
	}
	return shortPlan + text, p.life
}

// takeToken returns the token that must not change until the answer is stored. The error says that Redis writes nothing.
func (p *Plans) takeToken(ctx context.Context, key string) (string, error) {
	return callRedis(ctx, p, func(ctx context.Context) (string, error) {
		pipe := p.rdb.Pipeline()
		pipe.SetNX(ctx, key+tokenSuffix, rand.Text(), tokenLife)
		token := pipe.Get(ctx, key+tokenSuffix)
		_, err := pipe.Exec(ctx)
		return token.Val(), err
	})
}

// store puts a plan into Redis, and reports whether its token was still there. The error says that Redis cannot.
func (p *Plans) store(ctx context.Context, key string, answer plan) (bool, error) {
	text, life := p.encode(answer)
	return callRedis(ctx, p, func(ctx context.Context) (bool, error) {
		return planScript.Run(ctx, p.rdb, []string{key, key + tokenSuffix}, answer.token, text, life.Milliseconds()).Bool()
	})
}

// forget removes a plan from Redis, so that no answer to a question asked before is stored.
func (p *Plans) forget(ctx context.Context, key string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	bounded, cancel := context.WithTimeout(ctx, p.config.timeout)
	defer cancel()
	lent := dispatch.Lend(context.Background(), ctx)
	defer lent.End()
	_, err := dispatch.Bounded(bounded, 0, func() (any, error) { // late, it still takes effect
		return p.rdb.Pipelined(lent, func(pipe redis.Pipeliner) error {
			// The token is replaced, not deleted: a Redis that refuses writes says so. It is replaced first: an answer that is
			// stored in between is deleted.
			pipe.Set(lent, key+tokenSuffix, rand.Text(), tokenLife)
			pipe.Del(lent, key)
			return nil
		})
	})
	return err
}

// callRedis calls Redis, and waits for an answer no longer than the timeout. After a failure it calls nothing for a second,
// then lets one call try. An error that Redis replies is no failure. The call has the values of a context, not its end.
func callRedis[T any](values context.Context, p *Plans, call func(context.Context) (T, error)) (T, error) {
	var none T
	began, lost := time.Now(), p.redisLost.Load()
	if lost != nil && (began.Sub(*lost) < planRecheck || !p.redisLost.CompareAndSwap(lost, &began)) {
		return none, dispatch.ErrLate // another one tries
	}
	// Many may wait while Redis is well. Once it fails, they stop waiting.
	for !take(p.calls, p.config.timeout) {
		if p.redisLost.Load() != nil || time.Since(began) >= sourceTimeout {
			return none, dispatch.ErrLate
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.config.timeout)
	defer cancel()
	value, err := dispatch.Bounded(ctx, 0, func() (T, error) {
		defer func() { <-p.calls }()
		return call(dispatch.Lend(ctx, values))
	})
	if err == nil || redisstore.IsRefusal(err) {
		p.redisLost.Store(nil)
		return value, err
	}
	now := time.Now()
	p.redisLost.Store(&now)
	return none, err
}
