package dispatch

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestBreakerStates goes through the table in the comment of breaker, transition by transition.
// Times are in milliseconds; calls are sent a millisecond before they fail unless a row says when.
func TestBreakerStates(t *testing.T) {
	t.Parallel()
	type event struct {
		what   string
		at     int
		sentAt int // of a failure; 0 is a millisecond before
		want   breakerState
		opened bool
	}
	fails := func(at int, want breakerState, opened bool) event { return event{"fails", at, 0, want, opened} }
	opens := []event{fails(100, closed, false), fails(200, closed, false), fails(300, open, true)}
	found := append(opens[:3:3], event{what: "found", want: halfOpen})
	for name, events := range map[string][]event{
		"closed: the third failure in a row opens": opens,
		"closed: an answer in between starts anew": {
			fails(100, closed, false), fails(200, closed, false), {what: "answers", want: closed},
			fails(300, closed, false), fails(400, closed, false), fails(500, open, true),
		},
		"closed: failures within the gap count as one": {
			fails(100, closed, false), fails(110, closed, false), fails(120, closed, false), fails(124, closed, false),
			fails(125, closed, false), fails(150, open, true),
		},
		"closed: calls in flight when another failed count with it, however late": {
			fails(100, closed, false), {"fails", 500, 99, closed, false}, {"fails", 900, 100, closed, false},
			{"fails", 1000, 101, closed, false}, fails(1100, open, true),
		},
		"closed: no probe runs, so none finds":     {{what: "found", want: closed}},
		"open: a failure changes nothing":          append(opens[:3:3], fails(400, open, false)),
		"open: an answer to an older call is late": append(opens[:3:3], event{what: "answers", want: open}),
		"open: a probe finds the server":           found,
		"half-open: one failure opens":             append(found[:4:4], fails(301, open, true)),
		"half-open: an answer closes": append(found[:4:4], event{what: "answers", want: closed},
			fails(400, closed, false), fails(500, closed, false), fails(600, open, true)),
		"half-open: a second probe changes nothing": append(found[:4:4], event{what: "found", want: halfOpen}),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBreaker(100 * time.Millisecond)
			start := time.Now()
			at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
			for _, e := range events {
				opened, before := false, b.state
				switch e.what {
				case "fails":
					if e.sentAt == 0 {
						e.sentAt = e.at - 1
					}
					opened = b.failed(at(e.sentAt), at(e.at))
				case "answers":
					changed := b.answered()
					require.Equal(t, before != b.state, changed, "%+v", e)
				case "found":
					b.found()
				}
				require.Equal(t, e.want.String(), b.state.String(), "%+v", e)
				require.Equal(t, e.opened, opened, "%+v", e)
			}
		})
	}
}

// TestOutage goes through an outage: open, half-open, closed.
func TestOutage(t *testing.T) {
	for _, direct := range []bool{false, true} {
		inBubbleRun(t, fmt.Sprint("inline ", direct), func(t *testing.T) {
			d, s := newServer(t, func(to *Server) { to.Inline = direct })
			one := newBuckets(t, bucket.Token, 100)
			require.NoError(t, d.Do(t.Context(), newCall("k", take(7, 1), one)))
			s.does(failing, refusing)
			failed(t, d)
			require.Equal(t, 1, s.lines(logOpen))
			require.Equal(t, 1, s.lines("because of: down"))

			// Nobody waits, and nothing is sent while pings fail.
			s.groups = nil
			began := time.Now()
			for time.Since(began) < blindGap-time.Second {
				start := time.Now()
				require.Equal(t, ErrOpen, d.Do(t.Context(), newCall("k", take(1, 1), one)))
				require.Zero(t, time.Since(start))
				time.Sleep(10 * time.Millisecond)
			}
			sends, pings := s.count()
			require.Equal(t, 1+maxFailures, sends)
			require.Greater(t, pings, 5)
			require.Less(t, pings, 30, "less often the longer it takes")

			// A probe is sent all the same, now and then.
			time.Sleep(2 * time.Second)
			sends, _ = s.count()
			require.Equal(t, 1+maxFailures+1, sends)

			// With a connection, but no answer, it is still open.
			s.does(failing, nil)
			time.Sleep(2 * time.Second)
			sends, _ = s.count()
			require.Greater(t, sends, 1+maxFailures+3)
			require.True(t, d.Stats().Open)
			require.Empty(t, s.groups)

			// A probe is answered. It looks at the bucket, and takes nothing.
			s.does(nil, nil)
			untilFound(t, d)
			require.Equal(t, halfOpen, stateOf(d))
			require.Equal(t, []sentGroup{{"k", bucket.Peek(1), 0, true}}, s.groups)
			require.Zero(t, s.lines(logBack))
			require.False(t, d.Idle(), "it may open again")

			c := newCall("k", take(1, 1), one)
			require.NoError(t, d.Do(t.Context(), c))
			require.EqualValues(t, 93, one[0].Remaining(c.States[0].Level), "of 100")
			require.Equal(t, closed, stateOf(d))
			time.Sleep(confirmTime)
			synctest.Wait()
			require.Equal(t, 1, s.lines(logBack))
			require.Equal(t, 1, s.lines(logOpen))
			require.True(t, d.Idle())

			// It takes three failures again.
			s.does(failing, refusing)
			failed(t, d)
			require.Equal(t, 2, s.lines(logOpen))
			require.Equal(t, map[Transition]uint64{{"open", "word"}: 2, {"half_open", ""}: 1, {"closed", ""}: 1},
				d.Stats().Transitions)
		})
	}
}

// TestHalfOpenOpensAtOneFailure has a server that answers probes, and no calls, for a minute.
func TestHalfOpenOpensAtOneFailure(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		one := newBuckets(t, bucket.Token, 100)
		calls := 0
		s.does(func(_ context.Context, b *Batch) error {
			if b.Groups[0].Op.Charges == 0 {
				return nil
			}
			calls++
			return errDown
		}, nil)
		failed(t, d)
		const span = time.Minute
		for range span / (5 * time.Millisecond) {
			require.Error(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			time.Sleep(5 * time.Millisecond)
		}
		synctest.Wait()
		require.Greater(t, calls, 100, "it is tried again and again")
		require.Less(t, calls, maxFailures+5+int(span/(maxProbeGap/2)), "the more often it opens, the less often")
		require.Equal(t, 1, s.lines(logOpen), "one outage")
		require.Zero(t, s.lines(logBack))
		s.does(nil, nil)
		untilFound(t, d)
		time.Sleep(confirmTime)
		synctest.Wait()
		require.Equal(t, 1, s.lines(logBack))
		require.True(t, d.Idle())
		opened := d.Stats().Transitions[Transition{"open", "word"}]
		require.EqualValues(t, 1+calls-maxFailures, opened, "by each call of a half-open breaker")
		require.Equal(t, map[Transition]uint64{{"open", "word"}: opened, {"half_open", ""}: opened},
			d.Stats().Transitions)
	})
}
