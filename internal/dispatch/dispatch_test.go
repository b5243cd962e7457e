package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestPanicsAnswerEveryone: a hook of the client may panic, or end the goroutine that sends.
func TestPanicsAnswerEveryone(t *testing.T) {
	for name, end := range map[string]func(){
		"panics": func() { panic("of a hook") },
		"ends":   runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				d, s := newServer(t)
				one := newBuckets(t, bucket.Token, 1000)
				release := occupy(t, d, s, func(context.Context, *Batch) error { end(); return nil })
				errs := make([]error, 600) // several batches
				for i := range errs {
					go func() { errs[i] = d.Do(t.Context(), newCall(fmt.Sprint("client ", i%7), take(1, 1), one)) }()
					synctest.Wait()
				}
				release()
				synctest.Wait()
				failed := 0
				for _, err := range errs {
					if err != nil {
						failed++
					}
				}
				require.Equal(t, len(errs), failed)
				require.Zero(t, d.Stats().InFlight, "the slots are free")
				s.does(nil, nil)
				time.Sleep(time.Second)
				require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
				require.Equal(t, closed, stateOf(d))
			})
		})
		t.Run(name+" inline", func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				d, s := newServer(t, inline)
				one := newBuckets(t, bucket.Token, 1000)
				require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
				synctest.Wait()
				s.does(func(context.Context, *Batch) error { end(); return nil }, nil)
				c, ended := newCall("k", take(1, 1), one), false
				var err error
				go func() {
					defer func() { ended = true }()
					err = d.Do(t.Context(), c)
				}()
				synctest.Wait()
				require.Equal(t, 1, s.inline)
				require.True(t, ended)
				require.Equal(t, name == "ends", c.Abandoned(), "its goroutine has ended before the answer")
				require.Equal(t, name != "ends", err != nil)
				synctest.Wait()
				require.Zero(t, d.Stats().InFlight)
				s.does(nil, nil)
				require.NoError(t, d.Do(t.Context(), newCall("k", take(1, 1), one)))
			})
		})
	}
}

// TestCallsAreUsedAgain: callers use their calls again, as a limiter does, unless they are
// abandoned. No other caller gets a late answer.
func TestCallsAreUsedAgain(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprint("inline ", direct), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				d, s := newServer(t, func(to *Server) { to.Inline = direct })
				s.does(func(_ context.Context, b *Batch) error {
					time.Sleep(time.Duration(rand.IntN(8)) * 8 * time.Millisecond)
					return nil
				}, nil)
				var pool sync.Pool
				var all sync.WaitGroup
				var answered, abandoned atomic.Int64
				for caller := range 20 {
					all.Go(func() {
						// What is taken of each caller's bucket tells its answers from those of
						// others.
						own := newBuckets(t, bucket.FixedWindow, int64(1000+caller))
						key, taken := fmt.Sprint("client ", caller), int64(0)
						for range 50 {
							c, ok := pool.Get().(*Call)
							if !ok {
								c = NewCall()
							}
							fill(c, key, take(1, 1), own)
							patience := time.Duration(1+rand.IntN(100)) * time.Millisecond
							ctx, cancel := context.WithTimeout(t.Context(), patience)
							err := d.Do(ctx, c)
							cancel()
							if !c.Abandoned() {
								if err == nil {
									assert.GreaterOrEqual(t, c.States[0].Level, taken)
									assert.LessOrEqual(t, c.States[0].Level, int64(50))
									assert.Empty(t, c.caller.done)
									taken = c.States[0].Level + 1
									answered.Add(1)
								}
								c.Release()
								pool.Put(c)
							} else {
								abandoned.Add(1)
							}
							time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
						}
					})
				}
				all.Wait()
				require.Greater(t, answered.Load(), int64(100))
				require.Greater(t, abandoned.Load(), int64(10))
			})
		})
	}
}

// TestFurtherKeysAreCopied: the memory of a key may be used again while the call may still be
// answered.
func TestFurtherKeysAreCopied(t *testing.T) {
	c := newCall("first", take(1, 1), newBuckets(t, bucket.Token, 1, 2, 3))
	for range 2 {
		c.Reset(c.Op, c.Buckets)
		c.Key = append(c.Key, "first"...)
		for i, text := range []string{"second", "third"} {
			other := newCall(text, take(1, 1), c.Buckets[i+1:])
			c.AddKey(other, i+1)
			clear(other.Key)
		}
		for i, want := range []string{"first", "second", "third"} {
			require.Equal(t, want, string(c.KeyOf(i)))
		}
	}
	require.Zero(t, testing.AllocsPerRun(10, func() {
		c.Others = c.Others[:0]
		c.AddKey(c, 1)
	}), "its memory is used again")
}
