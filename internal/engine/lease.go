package engine

import (
	"context"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/lease"
)

// mayLease reports whether leases may serve a call: not for calendar quotas beside other limits,
// bans and slots, nor where what is taken may be given back.
func (e *Engine) mayLease(c *dispatch.Call, ask *Ask) bool {
	return ask.Lease > 0 && e.leases != nil && c.Op.Charges > 0 &&
		!ask.Settles && !ask.Set.Mixed() && !ask.Set.Guarded()
}

func leased(c *dispatch.Call) lease.Subject {
	return lease.Subject{Key: c.Key, Hash: c.Hash, Buckets: c.Buckets}
}

// decideByLease decides on a call by tokens that were taken ahead, if there are enough.
func (e *Engine) decideByLease(c *dispatch.Call, ask *Ask, answer *Answer) bool {
	n := c.Op.Charges * c.Op.N
	left, _, ok := e.leases.Take(leased(c), n, c.States)
	if !ok {
		return false
	}
	answer.Verdict, answer.Statuses = ask.Set.JudgeLeased(c.States, n, left, ask.Report, answer.Statuses)
	answer.Decided, answer.Source = true, FromLease
	return true
}

// sendAhead sends a call that may take tokens ahead. The call is then as if it had taken only its
// own.
func (e *Engine) sendAhead(ctx context.Context, c *dispatch.Call, ask *Ask) error {
	if !e.background.Begin() { // Close would not give back what it takes ahead
		return dispatch.ErrClosed
	}
	defer e.background.Done()
	own := c.Op.Charges
	trip := e.leases.Begin(leased(c), ask.Lease, own, c.Op.N)
	c.Op.Charges = trip.Charges()
	err := e.store.Do(ctx, c)
	if err != nil {
		trip.Fail()
	} else {
		trip.End(leased(c), c.Op.Charges, c.States, c.Sent, c.Received)
	}
	if !c.Abandoned() {
		c.Op.Charges = min(own, c.Op.Charges)
	}
	return err
}

// returnLeases gives back leased tokens that were not used. What cannot be given back stays taken.
func (e *Engine) returnLeases() {
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	var all sync.WaitGroup
	for _, unused := range e.leases.Drain(e.returnTime()) {
		all.Go(func() { e.returnUnused(ctx, &unused) })
	}
	all.Wait()
}

// returnTime is for how long what is given back may be on its way to Redis: it may be queued, and
// then in flight, each a tenth longer than the timeout.
func (e *Engine) returnTime() time.Duration { return 2*e.Timeout + e.Timeout/5 }

// returnUnused gives leased tokens back to Redis.
func (e *Engine) returnUnused(ctx context.Context, unused *lease.Unused) {
	c := dispatch.NewCall()
	c.Reset(unused.Op(), unused.Buckets) // a Return, which is not to be done late
	c.Key, c.Hash = unused.Key, unused.Hash
	_ = e.apply(ctx, c, e.store.Do) // what cannot be given back stays taken
}
