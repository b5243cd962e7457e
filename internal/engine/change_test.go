package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestBlockReachesLaterCalendarPeriods, and a reset ends it there too.
func TestBlockReachesLaterCalendarPeriods(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		set, day := daily(5), 24*time.Hour
		one := ask("k", set)
		require.NoError(t, e.Block(t.Context(), 3*day+time.Hour, &one))
		for days := range 4 {
			one.Set = set.Now()
			require.False(t, take(t, e, 1, one).Allowed, "day %d", days)
			time.Sleep(day)
		}
		one.Set = set.Now()
		require.True(t, take(t, e, 1, one).Allowed)

		require.NoError(t, e.Block(t.Context(), 30*day, &one))
		time.Sleep(day)
		one.Set = set.Now()
		require.False(t, take(t, e, 1, one).Allowed)
		require.NoError(t, e.Reset(t.Context(), &one))
		for range 3 {
			one.Set = set.Now()
			require.True(t, take(t, e, 1, one).Allowed)
			time.Sleep(day)
		}
	})
}

// changes are what this process does to a key's buckets, each of a key whose tokens are all taken.
var changes = map[string]func(ctx context.Context, e *engine.Engine, ask *engine.Ask) error{
	"refund": func(ctx context.Context, e *engine.Engine, ask *engine.Ask) error { return e.Refund(ctx, 5, ask) },
	"block": func(ctx context.Context, e *engine.Engine, ask *engine.Ask) error {
		return e.Block(ctx, time.Hour, ask)
	},
	"reset": func(ctx context.Context, e *engine.Engine, ask *engine.Ask) error { return e.Reset(ctx, ask) },
}

// TestAChangeEndsDenialsAndLeases of its key, and of no other. A refund leaves the lease.
func TestAChangeEndsDenialsAndLeases(t *testing.T) {
	t.Parallel()
	for name, change := range changes {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e := b.redis(t)
			denied, other := ask("denied", setOf(perMinute(10))), ask("other", setOf(perMinute(10)))
			for _, one := range []engine.Ask{denied, other} {
				take(t, e, 10, one)
				take(t, e, 1, one)
			}
			one := leasing("leased")
			sources(t, e, 10, one)
			require.Equal(t, 1, e.Stats().Leases)
			require.Equal(t, 2, e.Stats().Denials)
			require.NoError(t, change(t.Context(), e, &denied))
			require.NoError(t, change(t.Context(), e, &one))
			require.Equal(t, 1, e.Stats().Denials)
			require.Equal(t, engine.FromStore, take(t, e, 1, denied).Source)
			require.Equal(t, engine.FromCache, take(t, e, 1, other).Source)
			leases, source := 0, engine.FromStore
			if name == "refund" {
				leases, source = 1, engine.FromLease
			}
			require.Equal(t, leases, e.Stats().Leases)
			require.Equal(t, source, take(t, e, 1, one).Source)
		})
	}
}

// TestAChangeThatFailedMayStillHappen: for a second nothing is remembered of its key. What Redis
// refused does not happen.
func TestAChangeThatFailedMayStillHappen(t *testing.T) {
	t.Parallel()
	for name, change := range changes {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e := b.redis(t)
			one := ask("k", setOf(perMinute(10)))
			take(t, e, 10, one)
			b.CutAfter.Store(true)
			require.ErrorIs(t, change(t.Context(), e, &one), engine.ErrUnavailable)
			b.CutAfter.Store(false)
			require.Equal(t, engine.FromStore, take(t, e, 10, one).Source)
			require.Zero(t, e.Stats().Denials)
			time.Sleep(time.Second + ms)
			require.Equal(t, engine.FromStore, take(t, e, 10, one).Source)

			refused := ask("refused", setOf(perMinute(10)))
			testkit.Must(b.Mini.Lpush("test:{refused}:m", "foreign"))
			if name == "reset" { // which deletes what it finds
				return
			}
			require.ErrorIs(t, change(t.Context(), e, &refused), engine.ErrUnavailable)
			b.Mini.Del("test:{refused}:m")
			time.Sleep(time.Second)
			take(t, e, 10, refused)
			take(t, e, 10, refused)
			require.Equal(t, engine.FromCache, take(t, e, 10, refused).Source)
		})
	}
}

// TestAChangeWakesThoseWhoWait for tokens of its key.
func TestAChangeWakesThoseWhoWait(t *testing.T) {
	onEveryStore(t, func(t *testing.T, _ *bench, e *engine.Engine) {
		for name, change := range changes {
			one := ask(name, setOf(perHour(10)))
			take(t, e, 10, one)
			waiting := one
			ctx, cancel := context.WithCancel(t.Context())
			done := goes(func() error { return waitN(ctx, e, 1, &waiting, new(engine.Answer)) })
			time.Sleep(time.Second)
			start := time.Now()
			require.NoError(t, change(t.Context(), e, &one))
			synctest.Wait()
			if name == "block" {
				require.Empty(t, done)
				cancel()
				require.ErrorIs(t, <-done, context.Canceled)
				continue
			}
			require.NoError(t, <-done, name)
			require.Zero(t, time.Since(start), name)
			cancel()
		}
	})
}

// TestAChangeEndsWithItsTimeout, a tenth late at most, or with its context.
func TestAChangeEndsWithItsTimeout(t *testing.T) {
	t.Parallel()
	for name, change := range changes {
		inBubbleRun(t, name, func(t *testing.T, b *bench) {
			e := b.redis(t)
			one := ask("k", setOf(perMinute(10)))
			take(t, e, 1, one)
			b.Delay.Store(int64(time.Second))
			start := time.Now()
			err := change(t.Context(), e, &one)
			require.ErrorIs(t, err, engine.ErrUnavailable)
			require.ErrorContains(t, err, "no answer from Redis in time")
			require.Equal(t, timeout+timeout/10, time.Since(start))
			ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
			defer cancel()
			start = time.Now()
			err = change(ctx, e, &one)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, engine.ErrUnavailable)
			require.Equal(t, 10*ms, time.Since(start))
		})
	}
}

// TestChangesHoldInAnOutage: a block and a reset are made in this process too, a refund if Redis
// does not make it.
func TestChangesHoldInAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.replica(t)
		at := func(client string) engine.Ask {
			one := ask(client, setOf(perMinute(20)))
			one.Failure = engine.FailLocal
			return one
		}
		blocked, reset, refunded := at("blocked"), at("reset"), at("refunded")
		require.NoError(t, e.Block(t.Context(), time.Hour, &blocked))
		require.NoError(t, e.Block(t.Context(), time.Hour, &reset))
		require.NoError(t, e.Reset(t.Context(), &reset))
		require.NoError(t, e.Refund(t.Context(), 5, &refunded))
		b.outage(t, e)
		a := take(t, e, 1, blocked)
		require.Equal(t, engine.FromLocal, a.Source)
		require.False(t, a.Allowed)
		require.Equal(t, time.Hour-3*timeout, a.RetryAfter)
		require.EqualValues(t, 9, take(t, e, 1, reset).Remaining, "of this process' share")

		require.EqualValues(t, 0, take(t, e, 10, refunded).Remaining)
		require.ErrorIs(t, e.Refund(t.Context(), 5, &refunded), engine.ErrUnavailable)
		require.EqualValues(t, 4, take(t, e, 1, refunded).Remaining)
		require.ErrorIs(t, e.Reset(t.Context(), &refunded), engine.ErrUnavailable)
		require.EqualValues(t, 9, take(t, e, 1, refunded).Remaining)
		require.ErrorIs(t, e.Block(t.Context(), time.Minute, &refunded), engine.ErrUnavailable)
		require.Equal(t, time.Minute, take(t, e, 1, refunded).RetryAfter)
	})
}

// TestABlockOfThisProcessIsNoLongerThanItsShareAllows, and of each limit its own.
func TestABlockOfThisProcessIsNoLongerThanItsShareAllows(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.replica(t)
		fast, slow := limit("f", 10_000_019, 1000), perHour(10)
		one := ask("k", setOf(fast, slow))
		one.Failure = engine.FailLocal
		share := fast.Share(2)
		most := time.Duration(share.MaxBlock()) * ms
		require.Less(t, most, 40*24*time.Hour)
		require.NoError(t, e.Block(t.Context(), 400*24*time.Hour, &one))
		_ = slow
		b.outage(t, e)
		only := one
		only.Set = setOf(fast)
		require.Equal(t, most-3*timeout, take(t, e, 1, only).RetryAfter)
	})
}

// TestAResetEndsTheBanThatThisProcessKnowsOf, though Redis cannot be asked.
func TestAResetEndsTheBanThatThisProcessKnowsOf(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		e := b.redis(t)
		one := ask("k", setOf(perMinute(1), bucket.NewBan(3_600_000, 3_600_000)))
		take(t, e, 1, one)
		take(t, e, 1, one)
		require.Equal(t, 1, e.Stats().Bans)
		b.Cut.Store(true)
		require.ErrorIs(t, e.Reset(t.Context(), &one), engine.ErrUnavailable)
		require.Zero(t, e.Stats().Bans)
	})
}
