package plancache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// TestOldPlansServe while the source fails, for the retention after their life, and then its error.
func TestOldPlansServe(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		d, down := newDatabase("a"), errors.New("down")
		first := b.process(d.query)
		has(t, first, "c", "a")
		time.Sleep(life)
		has(t, first, "c", "a") // again after its life, so Redis retains it
		renewed := time.Now()
		d.set("", down)
		time.Sleep(life)
		second := b.process(d.query)
		for ; time.Since(renewed) < life+retention-2*time.Second; time.Sleep(time.Hour - time.Second) {
			has(t, first, "c", "a")
			has(t, second, "c", "a")
			has(t, first, "c", "a")
		}
		time.Sleep(time.Until(renewed.Add(life + retention)))
		for range 3 {
			fails(t, first, "c", errFailed)
			fails(t, second, "c", down)
			time.Sleep(time.Minute)
		}
		queried := d.queried.Load()
		fails(t, first, "c", down)
		fails(t, first, "c", down)
		require.Equal(t, queried+1, d.queried.Load(), "a failure is kept for a second")
		time.Sleep(recheck)
		d.set("b", nil)
		has(t, first, "c", "b")
		require.EqualValues(t, 5, first.Stats().Errors)
	})
}

// TestTheNewerOldPlanServes, the process' plan or Redis' plan.
func TestTheNewerOldPlanServes(t *testing.T) {
	t.Parallel()
	now, c := time.Now(), newCache(t, nil, nil)
	older := &plan[string]{value: "older", ends: now.Add(-2 * time.Hour)}
	newer := &plan[string]{value: "newer", ends: now.Add(-1 * time.Hour)}
	require.Equal(t, "newer", c.fallback(errLate, older, newer).value)
	require.Equal(t, "newer", c.fallback(errLate, newer, older).value)
	none := &plan[string]{invalid: true, newer: true}
	for err, shared := range map[error]bool{errLate: true, errBusy: false} {
		got := c.fallback(err, none, none)
		require.ErrorIs(t, got.err, err)
		require.Equal(t, shared, got.until.After(now))
		require.True(t, got.invalid && got.newer)
	}
}

// TestOneQuestionAtATimeForEachPlace: a source that never returns keeps the place.
func TestOneQuestionAtATimeForEachPlace(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		var now, most atomic.Int64
		end := make(chan struct{})
		release := sync.OnceFunc(func() { close(end) })
		defer release()
		c := b.process(func(_ context.Context, client string) (string, error) {
			n := now.Add(1)
			defer now.Add(-1)
			most.Store(max(most.Load(), n))
			if client == "hangs" {
				<-end
			}
			time.Sleep(20 * time.Millisecond)
			return "a", nil
		})
		start := time.Now()
		fails(t, c, "hangs", errLate)
		require.Equal(t, sourceTimeout, time.Since(start))
		require.Len(t, c.queries, 1)
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				_, err := c.Get(t.Context(), fmt.Sprint(i))
				assert.NoError(t, err)
			})
		}
		all.Wait()
		require.EqualValues(t, maxQueries, most.Load())
		time.Sleep(time.Until(start.Add(sourceTimeout + recheck)))
		fails(t, c, "hangs", context.DeadlineExceeded) // for a second after the query was given up
		release()
		time.Sleep(recheck)
		require.Empty(t, c.queries)
		has(t, c, "hangs", "a")
	})
}

// TestLogOfASource that fails and recovers.
func TestLogOfASource(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		d := newDatabase("a")
		c := b.process(d.query)
		var log strings.Builder
		c.health.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		}))
		const (
			fails = `level=WARN msg="ginlimit: the source of plans fails; old plans serve" reason=*errors.errorString` +
				"\n"
			well = `level=INFO msg="ginlimit: the source of plans answers again"` + "\n"
		)
		n := 0
		logs := func(err error, want string) {
			t.Helper()
			log.Reset()
			d.set("a", err)
			n++
			_, _ = c.Get(t.Context(), fmt.Sprint(n))
			require.Equal(t, want, log.String())
		}
		down := errors.New("secret")
		logs(nil, "")
		logs(down, fails)
		logs(down, "")
		time.Sleep(recheck - 1)
		logs(nil, "")
		time.Sleep(time.Nanosecond)
		logs(nil, well)
		logs(nil, "")
		time.Sleep(time.Minute - recheck - 1)
		logs(down, "")
		time.Sleep(recheck)
		logs(nil, "") // nothing is logged
		logs(down, fails)
		time.Sleep(recheck - 1)
		logs(down, "")
		time.Sleep(recheck - 1)
		logs(nil, "")
		time.Sleep(time.Nanosecond)
		logs(nil, well)
	})
}

// TestReasons contain nothing that the source has put into an error.
func TestReasons(t *testing.T) {
	t.Parallel()
	own := func(err error) string {
		if err == errForeign {
			return "foreign"
		}
		return ""
	}
	for want, row := range map[string]struct {
		err  error
		took time.Duration
	}{
		"panic":               {goroutine.ErrPanic, 0},
		"goexit":              {goroutine.ErrGoexit, 0},
		"foreign":             {errForeign, time.Hour},
		"timeout":             {errors.New("secret"), sourceTimeout},
		"*errors.errorString": {errors.New("secret"), sourceTimeout - 1},
	} {
		require.Equal(t, want, reasonFor(row.err, row.took, own))
	}
}

// TestFunctionsThatDoNotReturn, of the source and of the logger.
func TestFunctionsThatDoNotReturn(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("fault") }, "goexit": runtime.Goexit} {
		inBubbleRun(t, name, func(t *testing.T, b *bubble) {
			var ends atomic.Bool
			ends.Store(true)
			c := b.process(func(context.Context, string) (string, error) {
				if ends.Load() {
					end()
				}
				return "a", nil
			})
			c.health.log = slog.New(endingHandler{end: end})
			for range 3 {
				fails(t, c, "c", errFailed)
				time.Sleep(recheck)
			}
			require.Empty(t, c.queries)
			ends.Store(false)
			has(t, c, "c", "a")
		})
	}
}

// endingHandler is a handler of log lines that does not return.
type endingHandler struct {
	slog.Handler
	end func()
}

func (endingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h endingHandler) Handle(context.Context, slog.Record) error {
	h.end()
	return nil
}

// TestTextsOfPlans: the text in Redis, its expiry, and what another process reads from it.
func TestTextsOfPlans(t *testing.T) {
	t.Parallel()
	now := time.Now()
	c := newCache(t, nil, nil)
	for text, row := range map[string]struct {
		answer plan[string]
		shared time.Duration
	}{
		"short plan a": {plan[string]{value: "a"}, life},
		"plan a":       {plan[string]{value: "a", retained: true}, life + retention},
		"unknown":      {plan[string]{err: errUnknown}, life},
	} {
		got, shared := c.encode(row.answer)
		require.Equal(t, text, got)
		require.Equal(t, row.shared, shared)
		for _, left := range []time.Duration{shared, shared - time.Minute, 0} {
			want := row.answer
			want.stored, want.ends = true, now.Add(left-shared+life)
			require.Equal(t, want, c.decode(text, now, left))
		}
		want := row.answer
		want.stored, want.ends = true, now.Add(life)
		require.Equal(t, want, c.decode(text, now, shared+time.Hour), "another process may have a longer life")
	}
	for _, foreign := range []string{"", "short ", "a", "short a", "unknown ", "Unknown", "short short plan a"} {
		require.Zero(t, c.decode(foreign, now, life), foreign)
	}
}
