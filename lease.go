package ginlimit

import (
	"context"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/lease"
)

func leaseSubject(c *dispatch.Call) lease.Subject {
	return lease.Subject{Key: c.Key, Hash: c.Hash, Buckets: c.Buckets}
}

// fromLease decides on a call by tokens that were taken ahead, if there are enough.
func (l *Limiter) fromLease(c *dispatch.Call, s *subject) (Result, bool) {
	n := c.Op.Charges * c.Op.N
	left, sent, ok := l.leases.Take(leaseSubject(c), n, c.States)
	if !ok {
		return Result{}, false
	}
	s.receipt.fill(sent, c.States)
	return s.limits.leased(c.States, n, left, s.status), true
}

// doAhead has a call done that may take tokens ahead for a life. The call is then as if it had taken only its own.
func (l *Limiter) doAhead(life time.Duration) func(context.Context, *dispatch.Call) error {
	return func(ctx context.Context, c *dispatch.Call) error {
		own := c.Op.Charges
		trip := l.leases.Begin(leaseSubject(c), life, own, c.Op.N)
		c.Op.Charges = trip.Charges()
		err := l.do(ctx, c)
		if err != nil {
			trip.Fail()
		} else {
			trip.End(leaseSubject(c), c.Op.Charges, c.States, c.Sent, c.Received)
		}
		if !c.Abandoned() {
			c.Op.Charges = min(own, c.Op.Charges)
		}
		return err
	}
}

// returnLeases gives back the leased tokens that were not used. What cannot be given back stays taken.
func (l *Limiter) returnLeases() {
	ctx, cancel := context.WithTimeout(context.Background(), l.defaults.timeout)
	defer cancel()
	var all sync.WaitGroup
	late := 2*l.defaults.timeout + l.defaults.timeout/5 // it may be queued, and then in flight, each a tenth longer
	for _, unused := range l.leases.Drain(late) {
		all.Go(func() {
			c := dispatch.NewCall()
			c.Reset(bucket.Op{Verb: bucket.Return, N: unused.Tokens, Marks: unused.Marks}, unused.Buckets) // not to be done late
			c.Key, c.Hash = unused.Key, unused.Hash
			_ = l.do(ctx, c)
		})
	}
	all.Wait()
}
