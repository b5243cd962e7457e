package plancache

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWhenTheSourceIsAsked, by the process' plan and Redis' plan.
func TestWhenTheSourceIsAsked(t *testing.T) {
	const key = "plan:{c}"
	never, past, future := -2*retention, -time.Minute, time.Minute
	redisHas := func(b *bubble) {
		_ = b.mini.Set(key, "short plan redis")
		b.mini.SetTTL(key, life)
	}
	redisFails := func(b *bubble) { b.mini.SetError("ERR down") }
	token := func(b *bubble) { _ = b.mini.Set(key+":token", "token") }
	nothing := func(*bubble) {}
	down := errors.New("down")
	for name, row := range map[string]struct {
		redis   func(*bubble)
		cached  plan[string]
		ends    time.Duration // of the cached plan
		err     error         // of the source
		want    plan[string]
		until   time.Duration
		queried bool
	}{
		"Redis has it": {redisHas, plan[string]{}, never, nil,
			plan[string]{value: "redis", stored: true}, recheck, false},
		"Redis has it, but missed an Invalidate": {redisHas, plan[string]{newer: true}, never, nil,
			plan[string]{value: "source", stored: true}, recheck, true},
		"Redis fails, the process has it": {redisFails, plan[string]{value: "known"}, future, nil,
			plan[string]{value: "known"}, recheck, false},
		"Redis fails, the process has it for a moment": {redisFails, plan[string]{value: "known"}, 1, nil,
			plan[string]{value: "known"}, 1, false},
		"Redis fails": {redisFails, plan[string]{}, never, nil,
			plan[string]{value: "source"}, recheck, true},
		"Redis fails, and missed an Invalidate": {redisFails, plan[string]{newer: true, invalid: true}, future, nil,
			plan[string]{value: "source", newer: true}, recheck, true},
		"Redis never stored it": {token, plan[string]{value: "known", token: "token"}, future, nil,
			plan[string]{value: "known", token: "token"}, recheck, false},
		"Redis never stored it, for a moment": {token, plan[string]{value: "known", token: "token"}, 1, nil,
			plan[string]{value: "known", token: "token"}, 1, false},
		"Redis never stored it, then an Invalidate": {token, plan[string]{value: "known", token: "older"}, future, nil,
			plan[string]{value: "source", stored: true}, recheck, true},
		"Redis has lost it": {token, plan[string]{value: "known", token: "token", stored: true}, future, nil,
			plan[string]{value: "source", stored: true}, recheck, true},
		"Redis gives no token": {func(b *bubble) { _, _ = b.mini.Push(key+":token", "x") },
			plan[string]{value: "known"}, future, nil, plan[string]{value: "known"}, recheck, false},
		"over, and the source fails": {nothing, plan[string]{value: "known"}, past, down,
			plan[string]{value: "known"}, recheck, false},
		"over": {nothing, plan[string]{value: "known"}, past, nil,
			plan[string]{value: "source", stored: true, retained: true}, recheck, true},
		"unknown before": {nothing, plan[string]{err: errUnknown}, past, nil,
			plan[string]{value: "source", stored: true}, recheck, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				c := b.process(func(context.Context, string) (string, error) { return "source", row.err })
				row.redis(b)
				cached := row.cached
				cached.ends = time.Now().Add(row.ends)
				got, queried := c.resolve(t.Context(), "c", key, &cached)
				require.Equal(t, row.queried, queried)
				require.Equal(t, row.until, time.Until(got.until))
				require.Empty(t, c.queries)
				if queried {
					require.Equal(t, life, time.Until(got.ends))
					got.token = ""
				}
				got.until, got.ends = time.Time{}, time.Time{}
				require.Equal(t, row.want, *got)
			})
		})
	}
}

// TestAnInvalidateWhileTheSourceIsAsked: the waiting callers get the answer, and it is not cached.
func TestAnInvalidateWhileTheSourceIsAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.process(func(context.Context, string) (string, error) {
			b.mini.Del("plan:{c}:token")
			return "source", nil
		})
		got, queried := c.resolve(t.Context(), "c", "plan:{c}", &plan[string]{})
		require.True(t, queried)
		require.True(t, got.invalid)
		require.Equal(t, "source", got.value)
		require.Zero(t, got.until)
	})
}

// TestAQuestionWithoutAPlace is not sent.
func TestAQuestionWithoutAPlace(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		c := b.process(fixed("a"))
		c.waiting.Store(maxWaiting)
		got, queried := c.resolve(t.Context(), "c", "plan:{c}", &plan[string]{})
		require.False(t, queried)
		require.ErrorIs(t, got.err, errBusy)
		require.EqualValues(t, maxWaiting, c.waiting.Load())
	})
}
