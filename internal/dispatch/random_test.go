package dispatch

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

var (
	firstSeed = flag.Uint64("seed", 0, "of TestWhateverTheServerDoes: the first seed")
	seeds     = flag.Uint64("seeds", 60, "of TestWhateverTheServerDoes: how many seeds")
)

// randomServer draws what becomes of each batch, and looks whether calls are sent as they should be.
type randomServer struct {
	*server
	honors bool // a batch ends with its context

	mu   sync.Mutex // guards everything below
	r    *rand.Rand
	well bool
	sent map[string]int64 // charges of each key
}

// becomes has a batch take its time, fail, panic or end its goroutine.
func (s *randomServer) becomes(ctx context.Context, b *Batch) error {
	s.mu.Lock()
	for _, m := range b.Groups {
		s.sent[string(m.Key)] += m.Charges
	}
	well, fate, takes := s.well, s.r.IntN(12), time.Duration(s.r.IntN(8))*8*time.Millisecond
	s.mu.Unlock()
	if well {
		return nil
	}
	switch fate {
	case 0:
		return errDown
	case 1:
		panic("of a hook")
	case 2:
		runtime.Goexit()
	case 3:
		takes *= 20
	}
	if !s.honors {
		time.Sleep(takes)
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(takes):
		return nil
	}
}

// TestWhateverTheServerDoes to batches, and whenever callers leave: a call is sent at most once, and answered in time
// or left; nobody gets another's answer, though callers use their calls again. Once the server is well it is found, and
// nothing waits. Some dispatchers are closed in between.
func TestWhateverTheServerDoes(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+*seeds; seed++ {
		inBubbleRun(t, fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			d, plain := newServer(t, func(to *Server) {
				to.Inline, to.OneOfMany, to.Conns = r.IntN(2) == 0, r.IntN(4) == 0, []int{0, 1, 3, 10, 20, 100}[r.IntN(6)]
			})
			s := &randomServer{server: plain, honors: d.server.Inline || r.IntN(2) == 0, r: r, sent: map[string]int64{}}
			s.does(s.becomes, nil)
			if seed%5 == 0 {
				time.AfterFunc(time.Duration(r.IntN(2000))*time.Millisecond, func() {
					start := time.Now()
					d.Close()
					assert.LessOrEqual(t, time.Since(start), closeTimeout)
				})
			}
			c := &randomCallers{d: d, asked: map[string]int64{}, levels: map[string]bool{}}
			one := newBuckets(t, bucket.FixedWindow, 1<<30)
			var all sync.WaitGroup
			for caller := range 20 {
				own := rand.New(rand.NewPCG(seed, uint64(2+caller)))
				all.Go(func() {
					for range 40 {
						gone := make(chan struct{}) // a Goexit ends the goroutine of a caller that sends its call itself
						go func() {
							defer close(gone)
							c.ask(t, own, one)
						}()
						<-gone
						time.Sleep(time.Duration(own.IntN(60)) * time.Millisecond)
					}
				})
			}
			all.Wait()
			time.Sleep(2 * time.Second)
			s.mu.Lock()
			s.well = true
			s.mu.Unlock()
			for key, charges := range s.sent {
				require.LessOrEqual(t, charges, c.asked[key], "no call of %s is sent twice", key)
			}
			if seed%5 == 0 {
				require.Equal(t, ErrClosed, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			} else {
				untilFound(t, d)
				require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
				time.Sleep(confirmTime)
				require.Equal(t, closed, stateOf(d))
				require.Equal(t, s.lines(logOpen), s.lines(logBack))
				require.True(t, d.Idle())
			}
			require.Zero(t, d.Stats().InFlight+d.Stats().Queued)
		})
	}
}

// randomCallers are callers on three keys. They use their calls again.
type randomCallers struct {
	d    *Dispatcher
	pool sync.Pool

	mu     sync.Mutex // guards everything below
	asked  map[string]int64
	levels map[string]bool // that calls have found: no two find the same
}

// ask makes a call for a token, for as long as its caller stays.
func (c *randomCallers) ask(t *testing.T, r *rand.Rand, one []bucket.Bucket) {
	call, ok := c.pool.Get().(*Call)
	if !ok {
		call = NewCall()
	}
	key, patience := fmt.Sprint("client ", r.IntN(3)), time.Duration(1+r.IntN(100))*time.Millisecond
	fill(call, key, take(1, 1), one)
	c.mu.Lock()
	c.asked[key]++
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if r.IntN(2) == 0 {
		ctx, patience = t.Context(), testTimeout+testTimeout/10
	}
	start := time.Now()
	err := c.d.Do(ctx, call)
	assert.LessOrEqual(t, time.Since(start), min(patience, testTimeout+testTimeout/10))
	assert.LessOrEqual(t, c.d.Stats().InFlight, c.d.slots.most)
	if call.Abandoned() {
		assert.Error(t, err)
		return
	}
	if err == nil {
		found := fmt.Sprint(key, " ", call.States[0].Level)
		c.mu.Lock()
		assert.False(t, c.levels[found], found)
		c.levels[found] = true
		c.mu.Unlock()
	}
	assert.Empty(t, call.caller.done)
	assert.True(t, call.Release())
	c.pool.Put(call)
}
