package engine

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/lease"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// maxDenial is the longest lease that counts for a denial that is held: it is held for half to three
// quarters of a lease.
const maxDenial = time.Second / 2

// askLease decides by tokens that were taken ahead, or has Redis decide and takes some ahead. Leases do not
// serve a request that may give back what it takes.
func (e *Engine) askLease(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) error {
	switch {
	case c.Op.Charges == 0:
		return e.peekAtLease(ctx, c, ask, answer)
	case e.decideByLease(c, ask, answer, c.Op.Charges, ask.again):
		return nil
	case e.isDenied(c, ask):
		return e.decideDenied(ctx, c, ask, answer)
	}
	return e.sendLeased(ctx, c, ask, answer)
}

// leased returns whose tokens may serve a call.
func leased(c *dispatch.Call, ask *Ask) lease.Subject {
	limits := ask.Set.Buckets(rules.Limits)
	all, _ := ask.Set.Ahead()
	s := lease.Subject{Key: c.Key, Hash: c.Hash, Buckets: limits}
	if len(all) > len(limits) {
		s.Ahead = &all[len(limits)]
	}
	return s
}

// decideByLease decides on a call by leased tokens, if they suffice for at least that number of charges.
func (e *Engine) decideByLease(c *dispatch.Call, ask *Ask, answer *Answer, least int64, again bool) bool {
	n, left := e.leases.Take(leased(c, ask), c.Op.Charges*c.Op.N, least*c.Op.N, again, c.States)
	if n == 0 {
		return false
	}
	answer.Verdict, answer.Statuses = ask.Set.JudgeLeased(c.States, n, left, ask.Report, answer.Statuses)
	answer.Decided, answer.Source = true, FromLease
	return true
}

// peekAtLease decides on a call that only looks: also by a lease, if Redis denies.
func (e *Engine) peekAtLease(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) error {
	if err := e.askStore(ctx, c, ask, answer); err != nil || answer.Allowed {
		return err
	}
	if left := e.leases.Usable(leased(c, ask)); left >= c.Op.N {
		answer.Verdict, answer.Statuses = ask.Set.JudgeLeased(c.States, 0, left, ask.Report, answer.Statuses[:0])
		answer.Source = FromLease
	}
	return nil
}

// decideDenied decides on a call that the deny cache denies: by tokens that were taken ahead, as far
// as they help.
func (e *Engine) decideDenied(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) error {
	if e.decideByLease(c, ask, answer, 1, true) {
		return nil
	}
	done, err := e.decideByBoth(ctx, c, ask, answer)
	if !done && err == nil {
		e.judgeDenied(c, ask, answer)
	}
	return err
}

// awaitLease waits for another call that takes tokens ahead, and reports whether what that brought decides on
// a call.
func (e *Engine) awaitLease(ctx context.Context, other *lease.Prefetch, c *dispatch.Call, ask *Ask, answer *Answer) (
	done bool, err error) {
	select {
	case <-other.Done:
	case <-ctx.Done():
		return false, ctx.Err()
	}
	switch {
	case other.Err != nil:
		return false, other.Err
	case e.decideByLease(c, ask, answer, c.Op.Charges, true):
		return true, nil
	case e.isDenied(c, ask):
		return true, e.decideDenied(ctx, c, ask, answer)
	}
	return false, nil
}

// sendLeased sends a call that may take tokens ahead, and decides on its own charges. If another call
// is in flight that takes tokens ahead, it first waits for that one.
func (e *Engine) sendLeased(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) error {
	start, subject := time.Now(), leased(c, ask)
	trip := e.leases.Begin(subject, ask.Set.Life, c.Op.Charges, c.Op.N)
	if other := trip.Other(); other != nil {
		within, cancel := e.within(ctx, start)
		defer cancel()
		ctx = within
		if done, err := e.awaitLease(ctx, other, c, ask, answer); done || err != nil {
			return err
		}
		trip = e.leases.Begin(subject, ask.Set.Life, c.Op.Charges, c.Op.N)
	}
	var after []bucket.State
	var short bool
	if trip.TakesAhead() {
		out := e.sendAhead(ctx, c, ask, trip)
		if out.err != nil {
			return out.err
		}
		copy(c.States, out.found)
		c.Sent, c.Received, after, short = out.sent, out.received, out.after, out.short
	} else {
		if err := e.store.Do(ctx, c); err != nil {
			return err
		}
		after, short = trip.End(subject, c.States, c.Sent, c.Received)
	}
	granted, allowed := ask.Set.Fit(c.States, c.Op.Charges, c.Op.N)
	if !allowed && e.decideByLease(c, ask, answer, 1, true) {
		return nil // by tokens that are held for longer
	}
	if !allowed {
		within, cancel := e.within(ctx, start)
		defer cancel()
		if done, err := e.decideByBoth(within, c, ask, answer); done || err != nil {
			return err
		}
	}
	if short {
		e.denyAtLeast(c, ask, after)
	} else {
		e.denied.Charge(denial(c))
	}
	e.judge(ask, answer, ask.Set, c.States, c.Op.N, granted, allowed)
	if allowed && after != nil {
		// Until what was taken ahead has flowed back, too, the bucket is not full.
		answer.ResetAfter = ask.Set.ResetAfter(answer.Resource, after)
	}
	if allowed && granted < c.Op.Charges {
		part := e.leases.TakePart(subject, (c.Op.Charges-granted)*c.Op.N)
		answer.Granted += part.Tokens
	}
	return nil
}

// decideByBoth decides on a denied call of several tokens by those that were taken ahead, and takes
// the others from Redis.
func (e *Engine) decideByBoth(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) (
	done bool, err error,
) {
	if c.Op.N == 1 || c.Op.Charges > 1 || !e.background.Begin() {
		return false, nil
	}
	defer e.background.Done()
	subject := leased(c, ask)
	part := e.leases.TakePart(subject, c.Op.N-1)
	if part.Tokens == 0 {
		return false, nil
	}
	op := bucket.Op{Verb: bucket.Take, Charges: 1, N: c.Op.N - part.Tokens}
	if _, fits := ask.Set.Fit(c.States, 1, op.N); !fits {
		e.leases.PutBack(part)
		return false, nil
	}
	own := e.call(op, &ask.Subject, rules.All)
	defer e.release(own)
	charge := Charge{of: ask.Subject, n: op.N}
	if err = e.store.Do(ctx, own); err != nil {
		e.leases.PutBack(part)
		e.recallOne(ctx, own, ask, err)
		return false, err
	}
	if _, allowed := ask.Set.Fit(own.States, 1, op.N); !allowed {
		e.leases.PutBack(part)
		return false, nil
	}
	if !e.leases.Use(part) {
		e.leases.PutBack(part)
		charge.receipt = newReceipt(e.Timeout, own.Sent, own.States)
		e.background.Detached(ctx, e.Timeout, func(ctx context.Context) { _ = e.giveBack(ctx, &charge) })
		return false, nil
	}
	e.judge(ask, answer, ask.Set, own.States, op.N, 1, true)
	answer.Granted += part.Tokens
	return true, nil
}

// ahead is the outcome of a call that took tokens ahead.
type ahead struct {
	found, after   []bucket.State // before the call and after it
	short          bool           // the limit had less than was asked for
	sent, received time.Time
	err            error
}

// sendAhead sends a call that takes tokens ahead. It goes on after its caller has left, so that they
// are not lost.
func (e *Engine) sendAhead(ctx context.Context, c *dispatch.Call, ask *Ask, trip lease.Trip) ahead {
	if !e.background.Begin() { // Close would not give back what it takes ahead
		trip.Fail(dispatch.ErrClosed)
		return ahead{err: dispatch.ErrClosed}
	}
	defer e.background.Done()
	own := e.call(trip.Op(), &ask.Subject, rules.All)
	buckets, layout := ask.Set.Ahead()
	own.Set(own.Op, buckets, layout)
	subject := leased(own, ask)
	done := make(chan ahead, 1)
	var ends atomic.Bool // there is an answer, or the caller has left
	op, charge := c.Op, Charge{of: ask.Subject}
	e.background.Detached(ctx, e.Timeout, func(ctx context.Context) {
		defer e.release(own)
		defer trip.Fail(dispatch.ErrLate) // a hook of the client may end the goroutine
		if err := e.store.Do(ctx, own); err != nil {
			trip.Fail(err)
			done <- ahead{err: err}
			return
		}
		after, short := trip.End(subject, own.States, own.Sent, own.Received)
		found := slices.Clone(own.States[:len(subject.Buckets)])
		if !ends.Swap(true) {
			done <- ahead{found, after, short, own.Sent, own.Received, nil}
		} else if charges, _ := charge.of.Set.Fit(found, op.Charges, op.N); charges > 0 {
			e.fillLate(&charge, charges*op.N, own.Sent, found)
			e.giveBackLate([]Charge{charge})
		}
	})
	select {
	case out := <-done:
		return out
	default:
	}
	if ask.Recalls && left(ctx) && ends.Swap(true) {
		return <-done
	}
	if ctx.Err() != nil {
		return ahead{err: ctx.Err()}
	}
	return ahead{err: dispatch.ErrLate} // a hook of the client ended the goroutine
}

// denyAtLeast denies for a while, by the deny cache, what the limit has no room for, so that processes
// ask Redis seldom while the limit has no more. If the call itself is denied, its states say so.
func (e *Engine) denyAtLeast(c *dispatch.Call, ask *Ask, after []bucket.State) {
	// By chance, as otherwise the process that asks right after another would always find less.
	hold := min(ask.Set.Life, maxDenial)
	hold = hold/2 + rand.N(hold/4+1)
	// A window says for how long it denies. Without a cache nobody is denied from it.
	if ask.waits() || !bucket.Tokens(c.Buckets) || e.denied == nil ||
		!denycache.Holds(c.Buckets, after, c.Op.N, hold) {
		hold = 0
	}
	e.denied.Remember(denial(c), denycache.Denial{
		States: after, Sent: c.Sent, Received: c.Received, AtLeast: hold,
	})
	if hold == 0 {
		return
	}
	for i := range c.Buckets {
		if b := &c.Buckets[i]; b.Denies(c.States[i], c.Op.N) {
			ms := bucket.CeilDiv(int64(hold), int64(time.Millisecond))
			c.States[i] = b.Hold(c.States[i], ms, c.Op.N, b.Remaining(c.States[i].Level))
		}
	}
}

// returnedAtOnce is how many keys' tokens Close gives back at the same time, so that each call ends in
// time.
const returnedAtOnce = 256

// returnLeases gives back leased tokens that were not used, for a second at most, or four timeouts if
// that is longer. What cannot be given back stays taken.
func (e *Engine) returnLeases() {
	end := time.Now().Add(max(closeTimeout, closeTimeouts*e.Timeout))
	e.unreturned.Lock()
	unused := append(e.leases.Drain(), e.unreturned.all...)
	e.unreturned.all = nil
	e.unreturned.Unlock()
	for part := range slices.Chunk(unused, returnedAtOnce) {
		if time.Now().After(end) {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
		atOnce(len(part), func(i int) error { return e.returnUnused(ctx, &part[i]) })
		cancel()
	}
}

// unreturned holds tokens that are to be given back when Close has begun.
type unreturned struct {
	sync.Mutex
	all []lease.Unused
}

// returnLater gives leased tokens back without waiting for Redis, or leaves that to Close.
func (e *Engine) returnLater(unused lease.Unused) {
	if !e.background.Begin() {
		e.unreturned.Lock()
		defer e.unreturned.Unlock()
		e.unreturned.all = append(e.unreturned.all, unused)
		return
	}
	defer e.background.Done()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	e.background.Detached(ended, e.Timeout, func(ctx context.Context) { _ = e.returnUnused(ctx, &unused) })
}

// returnTime is for how long what is given back may be on its way to Redis: it may be queued, and
// then in flight, each a tenth longer than the timeout.
func (e *Engine) returnTime() time.Duration { return 2*e.Timeout + e.Timeout/5 }

// returnUnused gives leased tokens back to Redis. What cannot be given back stays taken.
func (e *Engine) returnUnused(ctx context.Context, unused *lease.Unused) error {
	op := unused.Op(e.returnTime()) // a Return, which is not to be done late
	if !slices.ContainsFunc(op.Claims, func(c bucket.Claim) bool { return !c.Gone() }) {
		return nil // nothing is left
	}
	c := dispatch.NewCall()
	c.Set(op, unused.Buckets, bucket.NewLayout(unused.Buckets))
	c.Key, c.Hash = unused.Key, unused.Hash
	return e.apply(ctx, c, true)
}
