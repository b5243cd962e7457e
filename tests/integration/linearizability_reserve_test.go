package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"

	"github.com/ginlimit/ginlimit"
)

// Histories of reservations are linearizable too: Reserve is AllowN, and Settle replaces what was
// reserved by what was taken, once. Less is given back, more is charged, into debt up to another
// burst. A Settle without an answer does so at any moment from its beginning on, or never.

// settled returns how many tokens may be taken after two goroutines have settled a reservation,
// each with a number of its own. The one that came first counts, and only that one may have failed.
func settled(taken int, in operation, out outcome) (next []any) {
	after := func(actual int) int {
		if more := actual - in.n; more > 0 {
			return taken + min(more, 2*slowLimit.Burst-taken)
		}
		return max(0, taken+actual-in.n)
	}
	switch out.unsettled {
	case [2]bool{true, true}:
		return nil
	case [2]bool{true, false}:
		return []any{taken, after(in.actual[0])}
	case [2]bool{false, true}:
		return []any{taken, after(in.actual[1])}
	}
	return []any{after(in.actual[0]), after(in.actual[1])}
}

// settle has two goroutines settle a reservation at once: with less, as much or more, or not at all.
func (h *history) settle(t *testing.T, caller int, in operation, r *ginlimit.Reservation,
	random *rand.Rand, start time.Time) {
	in.verb, in.actual = settle, [2]int{random.IntN(2 * in.n), random.IntN(12)}
	var out outcome
	var both sync.WaitGroup
	called := time.Since(start).Nanoseconds()
	for i, actual := range in.actual {
		both.Go(func() {
			err := r.Settle(context.Background(), actual)
			if out.unsettled[i] = err != nil; err != nil {
				assert.ErrorIs(t, err, ginlimit.ErrUnavailable)
			}
		})
	}
	both.Wait()
	returned := time.Since(start).Nanoseconds()
	if out.lost = out.unsettled[0] || out.unsettled[1]; out.lost {
		returned = time.Hour.Nanoseconds() // it may happen later
	}
	h.add(porcupine.Operation{ClientId: caller, Input: in, Call: called, Output: out, Return: returned})
}

func TestConcurrentReservationsAreLinearizable(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]disturbance{
		"undisturbed":       undisturbed,
		"connections cut":   cutConnections,
		"scripts flushed":   flushScripts,
		"slow Redis":        delayReplies,
		"frozen Redis":      freezeServer,
		"replies swallowed": swallowReplies,
	} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %t", name, direct), func(t *testing.T) {
				t.Parallel()
				h := newHistory(t, direct)
				h.verbs = []verb{reserve, reserve, reserve, allowN, allowUpTo, peek}
				h.record(t, disturb)
				h.check(t, sequentialBucket.ToModel())
			})
		}
	}
}
