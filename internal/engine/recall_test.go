package engine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
)

// TestWhatIsTakenForACallerThatHasLeftIsGivenBack, once Redis has answered, if the caller wants that.
func TestWhatIsTakenForACallerThatHasLeftIsGivenBack(t *testing.T) {
	window, _ := bucket.New(bucket.FixedWindow, "w", 10, 10, 3_600_000)
	slots := bucket.NewSlots(3)
	for name, row := range map[string]struct {
		resources []bucket.Bucket
		several   bool
	}{
		"a bucket":  {[]bucket.Bucket{perHour(10)}, false},
		"a window":  {[]bucket.Bucket{window}, false},
		"slots":     {[]bucket.Bucket{perHour(10), slots}, false},
		"two":       {[]bucket.Bucket{perHour(10), perMinute(10)}, false},
		"two asks":  {[]bucket.Bucket{perHour(10)}, true},
		"and slots": {[]bucket.Bucket{perHour(10), slots}, true},
	} {
		for _, recalls := range []bool{true, false} {
			if !recalls && name != "a bucket" {
				continue
			}
			inBubbleRun(t, name+map[bool]string{true: ", given back", false: ", kept"}[recalls], func(t *testing.T, b *bench) {
				e := b.redis(t)
				asks := []engine.Ask{ask("k", setOf(row.resources...))}
				if row.several {
					asks = append(asks, ask("other", setOf(perHour(10))))
				}
				for i := range asks {
					asks[i].Settles, asks[i].Recalls = true, recalls
					require.EqualValues(t, 9, take(t, e, 1, asks[i]).Remaining)
				}
				want := int64(9)
				for _, delay := range []*atomic.Int64{&b.Delay, &b.Late} {
					delay.Store(int64(timeout / 2))
					ctx, cancel := context.WithCancel(t.Context())
					done := goes(func() error { return takeN(ctx, e, 2, asks, make([]engine.Answer, len(asks))) })
					delay.Store(0) // a report of slots comes before the call
					cancel()
					require.ErrorIs(t, <-done, context.Canceled)
					time.Sleep(2 * timeout)
					if !recalls {
						want -= 2
					}
					for _, one := range asks {
						require.Equal(t, want, left(t, e, one))
					}
				}
			})
		}
	}
}

// TestWhatIsTakenAfterTheTimeoutIsGivenBack, if the caller wants that and this process does not decide instead.
func TestWhatIsTakenAfterTheTimeoutIsGivenBack(t *testing.T) {
	for _, recalls := range []bool{true, false} {
		inBubbleRun(t, fmt.Sprint(recalls), func(t *testing.T, b *bench) {
			e, want := b.redis(t), int64(9)
			one := ask("k", setOf(perHour(10)))
			one.Settles, one.Failure, one.Recalls = true, engine.FailClosed, recalls
			require.EqualValues(t, want, take(t, e, 1, one).Remaining)
			b.Late.Store(int64(2 * timeout))
			require.ErrorIs(t, takeN(t.Context(), e, 2, []engine.Ask{one}, make([]engine.Answer, 1)), engine.ErrUnavailable)
			b.Late.Store(0)
			time.Sleep(3 * timeout)
			if !recalls {
				want -= 2
			}
			require.Equal(t, want, left(t, e, one))
		})
	}
}

// TestALeasedCallerThatHasLeftTakesNothing, whether its call takes tokens ahead, which stay, or none.
func TestALeasedCallerThatHasLeftTakesNothing(t *testing.T) {
	for name, calls := range map[string]int{"alone": 0, "ahead": 5} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e, remaining := b.redis(t), map[string]int64{}
			for _, key := range []string{"stays", "leaves"} {
				one := leasing(key)
				one.Recalls = true
				sources(t, e, calls, one)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				b.Delay.Store(int64(timeout / 5))
				done := goes(func() error { return takeN(ctx, e, 1, []engine.Ask{one}, make([]engine.Answer, 1)) })
				if key == "leaves" {
					cancel()
					require.ErrorIs(t, <-done, context.Canceled)
				}
				time.Sleep(timeout)
				b.Delay.Store(0)
				remaining[key] = left(t, e, one)
			}
			require.Equal(t, remaining["stays"]+1, remaining["leaves"])
			require.Equal(t, min(calls, 1)*2, e.Stats().Leases)
		})
	}
}

// TestADenialKeepsWhatALateAttemptTakes: the attempt has ended before the answer, which does not say whether it
// took tokens. Where Redis hears of the end first it takes none, and nothing may be given back that was not taken.
func TestADenialKeepsWhatALateAttemptTakes(t *testing.T) {
	for name, row := range map[string]struct {
		delay, late time.Duration // before Redis runs the script, and after
		want        int64
	}{"Redis runs it late": {2 * timeout, 0, 9}, "Redis answers late": {0, 2 * timeout, 8}} {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			var hangs atomic.Bool
			e, first, second := onHookedNodes(t, b, func(send func() error) error {
				if !hangs.Swap(false) {
					return send()
				}
				time.Sleep(row.delay)
				defer time.Sleep(row.late)
				return send()
			})
			one := failing(first, setOf(perHour(1)), engine.FailLocal)
			slot := failing(second, setOf(perHour(10), bucket.NewSlots(3)), engine.FailLocal)
			take(t, e, 1, one)
			held := take(t, e, 1, slot)
			require.True(t, held.HasSlot())
			hangs.Store(true)
			answers := make([]engine.Answer, 2)
			require.NoError(t, takeN(t.Context(), e, 1, []engine.Ask{one, slot}, answers))
			require.True(t, denied(answers[0]))
			time.Sleep(3 * time.Second)
			require.Equal(t, row.want, left(t, e, slot))
		})
	}
}
