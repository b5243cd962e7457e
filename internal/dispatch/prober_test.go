package dispatch

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestProbesLookAtAllBucketsOfTheCall: at those of the call that has failed, which its caller uses
// for others again.
func TestProbesLookAtAllBucketsOfTheCall(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		two := newBuckets(t, bucket.SlidingWindow, 10, 20)
		s.does(failing, refusing)
		for range maxFailures {
			c := newCall("a", take(1, 1), two)
			c.Others = []OtherKey{{Key: []byte("b"), From: 1}}
			require.Equal(t, errDown, d.Do(t.Context(), c))
			c.Key[0], c.Names[0][0] = 'x', 'x' // the caller uses its call again
			time.Sleep(failureGap)
		}
		var probed []*Group
		s.does(func(_ context.Context, b *Batch) error {
			m := *b.Groups[0]
			probed = append(probed, &m)
			return errDown
		}, nil)
		time.Sleep(time.Second)
		synctest.Wait()
		require.NotEmpty(t, probed)
		for _, m := range probed {
			require.Equal(t, "a", string(m.Key))
			require.Equal(t, []string{"name of a", "name of a"}, []string{m.Names[0].String(), m.Names[1].String()})
			require.Len(t, m.Found, 2)
		}
	})
}

// TestOpensAgainAboutWhenTheProberEnds: at no moment is the breaker open without a prober.
func TestOpensAgainAboutWhenTheProberEnds(t *testing.T) {
	for _, after := range []time.Duration{0, confirmTime / 2, confirmTime - 1, confirmTime, confirmTime + 1} {
		inBubbleRun(t, after.String(), func(t *testing.T) {
			for range 50 {
				d, s := newServer(t)
				one := newBuckets(t, bucket.Token, 100)
				s.does(failing, refusing)
				failed(t, d)
				found := make(chan struct{}, 1)
				s.does(func(context.Context, *Batch) error {
					s.does(failing, refusing)
					found <- struct{}{}
					return nil
				}, nil)
				<-found
				time.Sleep(after)
				if after == 0 {
					synctest.Wait()
				}
				require.Equal(t, errDown, d.Do(t.Context(), newCall("k", take(1, 1), one)))
				synctest.Wait()
				require.True(t, d.Stats().Open, "one failure opens it while it is half-open")
				s.does(nil, nil)
				time.Sleep(time.Second)
				require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
				require.Equal(t, closed, stateOf(d))
				time.Sleep(confirmTime)
				synctest.Wait()
				require.True(t, d.Idle())
				require.Equal(t, s.lines(logOpen), s.lines(logBack))
			}
		})
	}
}

// TestOpensAgainAsTheProberEnds has a call fail between the end of the prober's wait and its look
// at the breaker.
func TestOpensAgainAsTheProberEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for range 20 { // the prober may hear of the failure first
			d, s := newServer(t)
			s.does(failing, refusing)
			failed(t, d)
			found := make(chan struct{}, 1)
			s.does(func(context.Context, *Batch) error { found <- struct{}{}; return nil }, nil)
			<-found
			synctest.Wait()
			s.does(nil, nil)
			d.mu.Lock()
			time.Sleep(confirmTime) // as the prober does
			for range 10 {
				runtime.Gosched()
			}
			d.failedLocked(time.Now(), time.Now(), newCall("k", take(1, 1), newBuckets(t, bucket.Token, 1)), errDown)
			d.mu.Unlock()
			synctest.Wait()
			require.True(t, d.Stats().Open)
			require.False(t, d.Idle(), "the prober goes on")
			require.Zero(t, s.lines(logBack))
			untilFound(t, d)
			time.Sleep(confirmTime)
			synctest.Wait()
			require.Equal(t, 1, s.lines(logBack))
			require.True(t, d.Idle())
		}
	})
}

// TestProbesAreBounded: pings and probes may hang, and each may hold a connection.
func TestProbesAreBounded(t *testing.T) {
	for name, row := range map[string]struct {
		pingHangs, sendHangs bool
		pings, sends         int
	}{
		"pings hang, without an end":            {true, false, maxPings, 0},
		"pings and probes hang, without an end": {true, true, maxPings, maxProbes},
		"probes hang, without an end":           {false, true, maxProbes, maxProbes},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			d, s := newServer(t)
			one := newBuckets(t, bucket.Token, 100)
			s.does(failing, refusing)
			failed(t, d)
			gate := make(chan struct{})
			send, ping := failing, func(context.Context) error { return nil }
			if row.sendHangs {
				send = func(context.Context, *Batch) error { <-gate; return nil }
			}
			if row.pingHangs {
				ping = func(context.Context) error { <-gate; return nil }
			}
			s.does(send, ping)
			sendsBefore, pingsBefore := s.count()
			time.Sleep(10 * time.Minute)
			sends, pings := s.count()
			require.Equal(t, row.pings, pings-pingsBefore)
			if row.sendHangs {
				require.Equal(t, row.sends, sends-sendsBefore)
			}
			s.does(nil, nil)
			close(gate)
			time.Sleep(time.Second)
			require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
		})
	}
}

// TestProbesFollowUnansweredOnes: the next pause begins when the timeout has ended, however long a
// probe hangs.
func TestProbesFollowUnansweredOnes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		s.does(failing, refusing)
		failed(t, d)
		gate := make(chan struct{})
		defer close(gate)
		s.does(func(context.Context, *Batch) error { <-gate; return nil }, nil)
		before, _ := s.count()
		longest := time.Duration(0)
		for pause := minProbeGap; pause < 2*maxProbeGap; pause *= 2 {
			longest += min(pause, maxProbeGap)*3/2 + testTimeout
		}
		time.Sleep(longest)
		synctest.Wait()
		sends, _ := s.count()
		require.Equal(t, maxProbes, sends-before)
	})
}

// TestLateProbesDoNotCount: a server that answers only after the timeout is not back.
func TestLateProbesDoNotCount(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		s.does(failing, refusing)
		failed(t, d)
		s.does(func(context.Context, *Batch) error { time.Sleep(testTimeout); return nil }, nil)
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			require.True(t, d.Stats().Open)
		}
		s.does(func(context.Context, *Batch) error { time.Sleep(testTimeout - 1); return nil }, nil)
		time.Sleep(testTimeout) // the last late one
		untilFound(t, d)
	})
}

// TestALateProbeEndsThePause: a server that wakes up answers what it was sent before, too late. It
// is found at once.
func TestALateProbeEndsThePause(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		s.does(failing, refusing)
		failed(t, d)
		asleep := make(chan struct{})
		s.does(func(context.Context, *Batch) error { <-asleep; return nil }, nil)
		time.Sleep(time.Minute)
		close(asleep)
		synctest.Wait()
		require.False(t, d.Stats().Open)
	})
}

// TestAnswersFromBeforeItOpenedAgainAreOld: one that comes while the breaker is half-open does not
// end the pause that follows if it opens again. Its probe is not counted as unanswered either.
func TestAnswersFromBeforeItOpenedAgainAreOld(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		s.does(failing, refusing)
		failed(t, d)
		for range maxProbes + 1 {
			var probes atomic.Int64
			asleep := make(chan struct{})
			s.does(func(context.Context, *Batch) error {
				if probes.Add(1) == 1 {
					<-asleep
				}
				return nil
			}, nil)
			for range 2000 {
				if !d.Stats().Open {
					break
				}
				time.Sleep(time.Millisecond)
				synctest.Wait()
			}
			require.False(t, d.Stats().Open)
			close(asleep)
			synctest.Wait()
			s.does(failing, nil)
			before, _ := s.count()
			require.Equal(t, errDown, d.Do(t.Context(), newCall("k", take(1, 1), newBuckets(t, bucket.Token, 100))))
			time.Sleep(minProbeGap - 1)
			synctest.Wait()
			require.True(t, d.Stats().Open)
			sends, _ := s.count()
			require.Equal(t, before+1, sends, "half a pause, which is twice as long as the first one")
		}
	})
}

// TestSlowConnectionsAreFound: a probe may take longer to make a connection than its answer may.
func TestSlowConnectionsAreFound(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t)
		s.does(failing, refusing)
		failed(t, d)
		s.does(nil, func(ctx context.Context) error {
			select {
			case <-time.After(800 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		time.Sleep(2 * time.Second)
		require.False(t, d.Stats().Open)
	})
}

// panickingLog is a log handler of an application at its worst.
type panickingLog struct{ slog.Handler }

func (panickingLog) Enabled(context.Context, slog.Level) bool { panic("of a log handler") }

// TestAPanicOfTheLogEndsNoProcess: nor the prober, without which the server would not be found.
func TestAPanicOfTheLogEndsNoProcess(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d, s := newServer(t, func(to *Server) { to.Log = slog.New(panickingLog{}) })
		s.does(failing, refusing)
		failed(t, d)
		s.does(nil, nil)
		untilFound(t, d)
		time.Sleep(confirmTime)
		synctest.Wait()
		require.True(t, d.Idle())
	})
}
