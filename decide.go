package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/lease"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// store keeps buckets.
type store interface {
	// Do has a call done: on all its buckets at once or on none.
	Do(ctx context.Context, c *dispatch.Call) error
	// Close returns when the store has stopped working.
	Close()
	// String names the store. Stores that share no bucket have different names, and those that do have the same as far as is known.
	String() string
}

// localStore is a store in this process.
type localStore struct {
	*memory.Store
	slots *inflight.Counts
}

func (s localStore) Do(_ context.Context, c *dispatch.Call) error {
	c.Sent = time.Now()
	doHere(s.Store, s.slots, c, c.Buckets, c.Op, c.States, false)
	return nil
}

func (localStore) Close() {}

func (s localStore) String() string { return fmt.Sprintf("%p", s.Store) }

// call returns a call for an Op on the buckets of a subject.
func (l *Limiter) call(op bucket.Op, s *subject) *dispatch.Call {
	c, ok := l.calls.Get().(*dispatch.Call)
	if !ok {
		c = dispatch.NewCall()
	}
	c.Reset(op, s.limits.buckets)
	c.Key = l.keys.Append(c.Key, s.keyName, s.client)
	c.Hash = clientkey.Hash(c.Key)
	return c
}

// release keeps a call for another use, unless it may still be answered.
func (l *Limiter) release(c *dispatch.Call) {
	if !c.Abandoned() {
		c.Release()
		l.calls.Put(c)
	}
}

// decide has a call done and derives the Result from the states found. The store is given less time than the caller has
// if within ends before ctx.
func (l *Limiter) decide(ctx, within context.Context, c *dispatch.Call, s *subject) (Result, error) {
	op, leases := c.Op, l.mayLease(c, s)
	s.receipt.begin(l, c.Hash)
	if leases {
		if res, ok := l.fromLease(c, s); ok {
			return res, nil
		}
	}
	if l.knownRefusal(c) {
		res := s.limits.result(c.States, c.Op, s.status)
		res.Source = FromMemory
		return res, nil
	}
	do := l.do
	if leases {
		do = l.doAhead(s.limits.lease)
	}
	if err := do(within, c); err != nil {
		if ctx.Err() == nil && !redisstore.IsReply(err) && !errors.Is(err, dispatch.ErrQueueFull) { // else Redis may be well
			l.leases.Lose()
		}
		return l.fallback(ctx, c, op, s, err)
	}
	s.receipt.fill(c.Sent, c.States)
	res := s.limits.result(c.States, c.Op, s.status)
	res.Source = l.source
	if res.Allowed {
		l.denied.Drop(c.Key, c.Hash)
	} else {
		l.remember(c)
	}
	return res, nil
}

// mayLease reports whether leases may serve a call: not for mixed limits, bans and slots, nor where what is taken may be given back.
func (l *Limiter) mayLease(c *dispatch.Call, s *subject) bool {
	set := s.limits
	return set.lease > 0 && l.leases != nil && c.Op.Charges > 0 && !set.mixed && !set.guarding && set.guards == nil && s.receipt == nil
}

func subjectOf(c *dispatch.Call) denycache.Subject {
	return denycache.Subject{Key: c.Key, Hash: c.Hash, Buckets: c.Buckets, N: c.Op.N}
}

// knownRefusal reports whether a call is known to be refused, and if so sets its states.
func (l *Limiter) knownRefusal(c *dispatch.Call) bool {
	if c.Op.Charges == 0 || !l.denied.Lookup(subjectOf(c), c.States) {
		return false
	}
	for i := range c.Buckets {
		if c.Buckets[i].Kind == bucket.Ban && c.Op.Bans != bucket.NoBans && c.States[i].Wait == 0 {
			return false // it was a refusal that banned nobody, and this one is to
		}
	}
	return true
}

// remember keeps that Redis refused a call.
func (l *Limiter) remember(c *dispatch.Call) {
	if c.Op.Charges > 0 {
		l.denied.Remember(subjectOf(c), denycache.Refusal{States: c.States, Sent: c.Sent, Received: c.Received})
	}
}

func leaseSubject(c *dispatch.Call) lease.Subject {
	return lease.Subject{Key: c.Key, Hash: c.Hash, Buckets: c.Buckets}
}

// fromLease decides on a call by tokens that were taken ahead, if there are enough.
func (l *Limiter) fromLease(c *dispatch.Call, s *subject) (Result, bool) {
	n := c.Op.Charges * c.Op.N
	left, _, ok := l.leases.Take(leaseSubject(c), n, c.States)
	if !ok {
		return Result{}, false
	}
	return s.limits.leased(c.States, n, left, s.status), true
}

// doAhead has a call done that may take tokens ahead for a life. The call is then as if it had taken only its own.
func (l *Limiter) doAhead(life time.Duration) func(context.Context, *dispatch.Call) error {
	return func(ctx context.Context, c *dispatch.Call) error {
		if !l.background.begin() { // Close would not give back what it takes ahead
			return dispatch.ErrClosed
		}
		defer l.background.all.Done()
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
	for _, unused := range l.leases.Drain(l.returnsWithin()) {
		all.Go(func() { _ = l.returnUnused(ctx, &unused) })
	}
	all.Wait()
}

// returnsWithin is for how long what is given back to Redis may be on its way: it may be queued, and then in flight, each a
// tenth longer than the timeout.
func (l *Limiter) returnsWithin() time.Duration { return 2*l.defaults.timeout + l.defaults.timeout/5 }

// returnUnused gives leased tokens back to Redis.
func (l *Limiter) returnUnused(ctx context.Context, unused *lease.Unused) error {
	c := dispatch.NewCall()
	c.Reset(unused.Op(), unused.Buckets) // a Return, which is not to be done late
	c.Key, c.Hash = unused.Key, unused.Hash
	err := l.do(ctx, c)
	l.changed(unused.Key, unused.Hash, err)
	return err
}

// movingTime is for how long a client's buckets are asked for one by one without trying them together first, once their
// slot was seen to migrate.
const movingTime = time.Second

// do has a call done by the store.
//
// While a slot of a cluster migrates, Redis answers every call on several of its keys TRYAGAIN, for as long as that takes.
// A call on one key is done, so a call on several buckets then becomes one call for each.
//
// What may give back tokens that others have charged voids the key's leases.
func (l *Limiter) do(ctx context.Context, c *dispatch.Call) (err error) {
	if c.Op.Verb != bucket.Take && c.Op.Verb != bucket.Charge {
		note := l.leases.Forget
		if c.Op.Verb == bucket.Return {
			note = l.leases.Returns
		}
		done := note(c.Hash)
		defer func() { done(mayStillHappen(err)) }()
	}
	keys := redisstore.Keys(c)
	if keys == 1 {
		return l.store.Do(ctx, c)
	}
	start, moving := time.Now(), &l.moving[c.Hash%uint64(len(l.moving))]
	if start.UnixMilli() >= moving.Load() {
		err := l.store.Do(ctx, c)
		if err == nil || !redisstore.IsTryAgain(err, keys) {
			return err
		}
		moving.Store(start.Add(movingTime).UnixMilli())
	}
	ctx, cancel := context.WithDeadline(ctx, start.Add(l.defaults.timeout))
	defer cancel()
	if c.Op.Verb == bucket.Take {
		return l.decideEach(ctx, c)
	}
	var errs []error
	for i := range c.Buckets {
		errs = append(errs, l.changeOne(ctx, c, i))
	}
	return errors.Join(errs...)
}

// changeOne has a change made to one bucket. What is to be written into its record is written first: what is given back and not
// written down would be given back twice.
func (l *Limiter) changeOne(ctx context.Context, c *dispatch.Call, i int) error {
	op := c.Op.Only(i)
	if op.Records != bucket.WithRecords || c.Buckets[i].Guards() {
		return l.doOne(ctx, c.Only(i, op))
	}
	op.Records = bucket.RecordsOnly
	record := c.Only(i, op)
	if err := l.doOne(ctx, record); err != nil {
		return err
	}
	op.Records = bucket.RecordsWritten
	if op.Verb == bucket.Return {
		units := record.States[0].Level
		if units == 0 {
			return nil
		}
		claim := op.Claims[0]
		claim.Sure, claim.Behind = units, units
		op.Claims = []bucket.Claim{claim}
	}
	return l.doOne(ctx, c.Only(i, op))
}

// returnTaken returns the Op that gives back charges of a call on one bucket.
func (l *Limiter) returnTaken(one *dispatch.Call, charges int64) bucket.Op {
	n := charges * one.Op.N
	receipt := l.newReceipt()
	receipt.fill(one.Sent, one.States)
	claims := receipt.claims(one.Buckets, n, false, "")
	takenNow(claims, one.Buckets, n)
	return bucket.Op{Verb: bucket.Return, N: n, Claims: claims, Records: bucket.WithRecords}
}

// movingPause is how long to wait before a call is sent again whose slot moves.
const movingPause = 10 * time.Millisecond

// doOne has a call on one bucket done, and sends it again, until the context ends, if its slot moves faster than the client
// follows.
func (l *Limiter) doOne(ctx context.Context, c *dispatch.Call) error {
	for {
		err := l.do(ctx, c)
		if !redisstore.IsMoving(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(movingPause):
		}
	}
}

// doEach has an Op done on each of the buckets, one after another: go-redis follows a slot to its new node at once for a
// command that is sent alone, and after a pause for several. It sets the states of the call, and returns the calls that it
// made, up to the first that failed.
func (l *Limiter) doEach(ctx context.Context, c *dispatch.Call, op bucket.Op) (calls []*dispatch.Call, err error) {
	for i := range c.Buckets {
		one := c.Only(i, op)
		if err := l.store.Do(ctx, one); err != nil {
			return calls, err
		}
		calls = append(calls, one)
		c.States[i], c.Received = one.States[0], one.Received
	}
	return calls, nil
}

// fitting returns how many of the charges the buckets of all calls have room for.
func fitting(charges int64, calls ...*dispatch.Call) int64 {
	for _, one := range calls {
		charges = one.Buckets[0].Fit(one.States[0].Level, charges, one.Op.N)
	}
	return charges
}

// decideEach looks at every bucket, and then charges each if all have room. What was taken is given back if another
// request has taken the room of one meanwhile, or if one fails.
func (l *Limiter) decideEach(ctx context.Context, c *dispatch.Call) error {
	if !l.background.begin() {
		return errClosed()
	}
	defer l.background.all.Done()
	looks, err := l.doEach(ctx, c, bucket.Peek(c.Op.N))
	if err != nil {
		return err
	}
	c.Sent = looks[0].Sent
	charges := fitting(c.Op.Charges, looks...)
	if charges == 0 {
		return nil
	}
	c.Op.Charges = charges
	takes, err := l.doEach(ctx, c, c.Op)
	kept := int64(0)
	if err == nil {
		kept = fitting(charges, takes...)
	}
	if err == nil && kept < charges && c.Attempt.Number > 0 { // after an error the fallback settles it
		l.slots.Settle(c.Key, c.Attempt.Number, inflight.Lost) // it may have taken a slot
	}
	var back []*dispatch.Call
	for i, one := range takes {
		if one.Buckets[0].Guards() {
			continue
		}
		if n := fitting(charges, one) - kept; n > 0 {
			if kept == 0 { // the store tells how long to wait after the charge
				c.States[i].Soon, c.States[i].Wait = looks[i].States[0].Soon, looks[i].States[0].Wait
			}
			back = append(back, one.Only(0, l.returnTaken(one, n)))
		}
	}
	if back != nil {
		l.finish(ctx, func(ctx context.Context) {
			for _, one := range back {
				err := l.doOne(ctx, one) // what cannot be given back stays taken
				l.changed(one.Key, one.Hash, err)
			}
		})
	}
	return err
}

// finish does f within a timeout of its own. It waits for that as long as the context lasts; then f goes on, and Close
// waits for it. Until finish returns, f has the values of the context. It is part of work that has begun.
func (l *Limiter) finish(ctx context.Context, f func(context.Context)) {
	l.background.all.Add(1)
	within, cancel := context.WithTimeout(context.Background(), l.defaults.timeout)
	lent := dispatch.Lend(within, ctx)
	defer lent.End()
	_, _ = dispatch.Bounded(ctx, 0, func() (struct{}, error) {
		defer l.background.all.Done()
		defer cancel()
		f(lent)
		return struct{}{}, nil
	})
}

// ready reports why the limiter makes no decision.
func (l *Limiter) ready(ctx context.Context) error {
	select {
	case <-l.closed:
		return errClosed()
	default:
	}
	if l.store == nil {
		return errNotMade
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	return nil
}

// mayStillHappen reports whether Redis may do a change that has failed.
func mayStillHappen(err error) bool { return err != nil && !redisstore.IsRefusal(err) }

// ended says that the caller's context ended before there was a decision.
func ended(ctx context.Context) error { return fmt.Errorf("ginlimit: %w", ctx.Err()) }

var errNotMade = fmt.Errorf("%w: the limiter was not made by NewLimiter or NewLocal", ErrUnavailable)

func errClosed() error { return fmt.Errorf("%w: %w", ErrUnavailable, dispatch.ErrClosed) }
