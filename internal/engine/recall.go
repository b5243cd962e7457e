package engine

import (
	"context"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/receipt"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// maxLate is how long an answer is waited for whose caller has left, or two timeouts if these are longer.
const maxLate = 2 * time.Second

// recall begins to give back what a call takes whose caller has left, once Redis has answered. It is false if nobody
// wants that or the call was not sent. The call is on all of the Asks; those on each alone are not used again, and
// their attempts end later: the script does not say whether one that has ended takes tokens.
func (e *Engine) recall(ctx context.Context, c *dispatch.Call, asks []*Ask, calls []*dispatch.Call) bool {
	if !c.InFlight() || !e.background.Begin() {
		return false
	}
	charges := make([]Charge, len(asks))
	for i, ask := range asks {
		charges[i].of = ask.Subject // the caller uses the Ask again
	}
	calls = slices.Clone(calls)
	go func() {
		defer e.background.Done()
		err := c.Late(max(maxLate, 2*e.Timeout))
		for _, single := range calls {
			e.loseAttempt(single)
		}
		n := c.Op.Charges
		for i := 0; i < len(c.Buckets) && err == nil; i++ {
			n = c.Buckets[i].Fits(c.States[i], n, c.Op.Tokens(i))
		}
		if n == 0 || err != nil {
			return
		}
		wire.Split(c, calls)
		for i, single := range calls {
			e.fillLate(&charges[i], n*single.Op.N, c.Sent, single.States)
		}
		e.giveBackLate(charges)
	}()
	return true
}

// fillLate fills in what was taken for a caller that has left.
func (e *Engine) fillLate(charge *Charge, n int64, sent time.Time, found []bucket.State) {
	charge.n, charge.receipt = n, receipt.New(e.Timeout)
	charge.receipt.Fill(sent, found)
}

// giveBackLate gives back what was taken for a caller that has left. What cannot be given back stays taken.
func (e *Engine) giveBackLate(charges []Charge) {
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	_ = e.Settle(ctx, make([]int64, len(charges)), charges)
}
