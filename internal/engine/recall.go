package engine

import (
	"context"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// maxLate is how long an answer is waited for whose caller has left, or two timeouts if these are longer.
const maxLate = 2 * time.Second

// recall begins to give back what a late call takes, once Redis has answered: its caller has left, or its request is
// denied. It is false if the call was not sent. A decision that calls it must have begun. The call is on all of the
// Asks; those on each alone are not used again, and their attempts end later: the script does not say whether one
// that has ended takes tokens.
func (e *Engine) recall(c *dispatch.Call, asks []*Ask, calls []*dispatch.Call) bool {
	if !c.InFlight() {
		return false
	}
	charges := make([]Charge, len(asks))
	for i, ask := range asks {
		charges[i].of = ask.Subject // the caller uses the Ask again
	}
	calls = slices.Clone(calls)
	e.background.Go(func() {
		err := c.Late(max(maxLate, 2*e.Timeout))
		for _, single := range calls {
			e.loseAttempt(single)
		}
		if err != nil {
			return
		}
		wire.Split(c, calls)
		n := c.Op.Charges
		for i, single := range calls {
			fit, _ := charges[i].of.Set.Fit(single.States, n, single.Op.N)
			n = min(n, fit)
		}
		if n == 0 {
			return
		}
		for i, single := range calls {
			e.fillLate(&charges[i], n*single.Op.N, c.Sent, single.States)
		}
		e.giveBackLate(charges)
	})
	return true
}

// recallOne is recall of one Ask on which nobody decides after an error of the store, if its caller wants that.
func (e *Engine) recallOne(ctx context.Context, c *dispatch.Call, ask *Ask, err error) bool {
	if !ask.Recalls || !e.failsClosed(ctx, ask, err) || !e.background.Begin() {
		return false
	}
	defer e.background.Done()
	return e.recall(c, []*Ask{ask}, []*dispatch.Call{c})
}

// fillLate fills in what was taken for a caller that has left.
func (e *Engine) fillLate(charge *Charge, n int64, sent time.Time, found []bucket.State) {
	charge.n, charge.receipt = n, newReceipt(e.Timeout, sent, found)
}

// giveBackLate gives back what was taken for a caller that has left. What cannot be given back stays taken.
func (e *Engine) giveBackLate(charges []Charge) {
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	_, _ = e.settleAll(ctx, make([]int64, len(charges)), charges)
}
