package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Charge is what a decision took.
type Charge struct {
	of      Subject
	n       int64 // tokens
	source  Source
	share   *rules.Set // by which this process decided, if it did
	attempt int64      // that holds a slot; 0 is none
	receipt *receipt   // nil if nothing is to be given back
	tried   bool       // by a request that waits: giving it back wakes nobody, as it tries again and again
}

// Charge returns what the decision on an Ask took.
func (a *Answer) Charge(ask *Ask) Charge {
	return Charge{
		of: ask.Subject, n: a.Granted, source: a.Source, share: a.share, attempt: a.attempt, receipt: a.receipt,
	}
}

// Settle makes each charge as large as the work that was done, actual tokens, all at the same time: one
// timeout is enough for all. It returns the errors. If ctx ends before, or has ended, it returns the error of ctx;
// the work goes on, and Close waits for it.
//
// At the end of the work a function is called with an answer to each charge. It is decided if the charge was
// changed, and then says what is left of its limits; it has failed if the charge could not be changed.
func (e *Engine) Settle(ctx context.Context, actual []int64, charges []Charge,
	settled func(context.Context, []Answer)) (errs []error) {
	if len(charges) == 0 {
		return nil
	}
	if !e.background.Begin() {
		return []error{errClosed()}
	}
	defer e.background.Done()
	if e.redis == nil || ctx.Done() == nil { // the caller waits anyway
		answers, errs := e.settleAll(ctx, actual, charges)
		settled(ctx, answers)
		return errs
	}
	var ( // of the work; whoever comes second, it or its caller, reports it
		answers []Answer
		all     []error
		first   atomic.Bool
	)
	err := e.background.Detached(ctx, e.Timeout+e.Timeout/10, func(ctx context.Context) {
		answers, all = e.settleAll(ctx, actual, charges)
		if first.Swap(true) {
			settled(ctx, answers)
		}
	})
	if first.Swap(true) {
		settled(ctx, answers)
	}
	if err != nil {
		return []error{Unavailable(ctx, err)}
	}
	return all
}

// settleAll is Settle of a caller that waits until the end, and calls no function.
func (e *Engine) settleAll(ctx context.Context, actual []int64, charges []Charge) (answers []Answer, errs []error) {
	answers = make([]Answer, len(charges))
	errs = atOnce(len(charges), func(i int) error { return e.settle(ctx, &charges[i], actual[i], &answers[i]) })
	for i, err := range errs {
		if err != nil {
			errs[i] = Unavailable(context.Background(), err) // the caller does not end it
		}
		answers[i].Failed = errs[i]
	}
	return answers, slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// atOnce calls f for the numbers below n, all at the same time, for the first one in this goroutine. It returns
// what f returned.
func atOnce(n int, f func(i int) error) []error {
	errs, others := make([]error, n), make([]<-chan goroutine.Outcome[struct{}], n)
	for i := 1; i < n; i++ {
		others[i] = goroutine.Isolate(func() (struct{}, error) { return struct{}{}, f(i) })
	}
	defer func() { // f may end the goroutine
		for i := 1; i < n; i++ {
			errs[i] = (<-others[i]).Err
		}
	}()
	if n > 0 {
		errs[0] = f(0)
	}
	return errs
}

// settle makes a charge one of actual tokens.
func (e *Engine) settle(ctx context.Context, charge *Charge, actual int64, left *Answer) error {
	more := actual - charge.n
	switch {
	case more == 0 || !charge.hasBuckets():
		return nil
	case more > 0:
		return e.correct(ctx, charge, bucket.Op{Verb: bucket.Charge, N: more}, left)
	}
	return e.correct(ctx, charge, e.returnOf(charge, -more, (*receipt).claims), left)
}

// hasBuckets reports whether tokens were taken of buckets.
func (c *Charge) hasBuckets() bool {
	return c.of.Set != nil && c.of.Set.Counts(rules.Limits) && c.source != FromOpen
}

// correct changes the buckets from which a charge was taken, and answers what is left of them.
func (e *Engine) correct(ctx context.Context, charge *Charge, op bucket.Op, left *Answer) error {
	if charge.source == FromLocal {
		key := e.key(&charge.of)
		op.Tenant = charge.of.Tenant
		states := e.applyLocally(key, clientkey.Hash(key), charge.share.Buckets(rules.Limits), op)
		left.leave(charge.share, states, FromLocal)
		return nil
	}
	c := e.call(op, &charge.of, rules.Limits)
	defer e.release(c)
	if err := e.apply(ctx, c, !charge.tried); err != nil {
		return err
	}
	left.leave(charge.of.Set, c.States, FromStore)
	return nil
}

// leave sets an answer to what a change has left of limits.
func (a *Answer) leave(set *rules.Set, left []bucket.State, source Source) {
	a.Verdict, _ = set.Judge(left, 1, 0, true, rules.ReportNone, nil)
	a.Decided, a.Source = true, source
}

// returnOf returns the operation that gives back the last n of a charge's tokens, by the claims
// that its receipt makes.
func (e *Engine) returnOf(charge *Charge, n int64,
	claims func(*receipt, []bucket.Bucket, int64, bool) []bucket.Claim) bucket.Op {
	set := charge.of.Set
	if charge.source == FromLocal {
		set = charge.share
	}
	own := charge.source == FromLocal || e.redis == nil
	return bucket.Op{
		Verb: bucket.Return, N: n, Claims: claims(charge.receipt, set.Buckets(rules.Limits), charge.n, own),
		Records: bucket.WithRecords,
	}
}

// giveBack gives back what was just taken.
func (e *Engine) giveBack(ctx context.Context, charge *Charge) error {
	e.Release(charge)
	if !charge.hasBuckets() {
		return nil
	}
	return e.correct(ctx, charge, e.returnOf(charge, charge.n, (*receipt).claimsAtOnce), new(Answer))
}

// minLate is the least time by which Redis may be late, where a short period bounds that.
const minLate = 100 * time.Millisecond

// receipt is how the tokens of a charge are found again, so that a process gives back these tokens and no
// others: of a window the mark that it left, of a token bucket the level that it found, and when.
type receipt struct {
	late  time.Duration // how late the store may do what it is asked
	sent  time.Time     // when the store was asked, at the earliest
	known time.Time     // when it had answered, at the latest
	found []bucket.State
}

// newReceipt returns a receipt for a charge of a store that answers within a timeout: when it was sent, and what it
// found.
func newReceipt(timeout time.Duration, sent time.Time, found []bucket.State) *receipt {
	// It may be queued, and then in flight.
	return &receipt{late: 2 * timeout, sent: sent, known: time.Now(), found: slices.Clone(found)}
}

// claims returns what a charge of n tokens has left in buckets. Own reports whether their store is
// in this process.
//
// A reset voids the claim. Redis does not say whether it came before or after a charge of about the
// same time, so it voids the charges soon after it, too.
func (r *receipt) claims(buckets []bucket.Bucket, n int64, own bool) []bucket.Claim {
	claims, age := make([]bucket.Claim, bucket.Counted(buckets)), time.Since(r.sent)
	for i := range claims {
		b := &buckets[i]
		late := r.lateFor(b)
		claims[i] = b.NewClaim(r.found[i].Level, b.Charge(n), age.Nanoseconds(), late.Nanoseconds())
		claims[i].Made = max(0, time.Since(r.known).Milliseconds()-1)
		claims[i].Mark, claims[i].Era = r.found[i].Mark, r.found[i].Era
		if !b.Flows() && (own && n > b.Burst || !own && r.over(b, age)) {
			claims[i].Mark = bucket.NoMark // of more than the window holds, nobody knows which are gone
		}
	}
	return claims
}

// claimsAtOnce is claims of tokens that a denied decision has just taken: all of them are left.
// What has flowed back of them meanwhile would have flowed back of others.
func (r *receipt) claimsAtOnce(buckets []bucket.Bucket, n int64, own bool) []bucket.Claim {
	claims := r.claims(buckets, n, own)
	for i := range claims {
		units := buckets[i].Charge(n)
		claims[i].Sure, claims[i].Behind = units, units
	}
	return claims
}

// over reports whether a window may be over before Redis gives back, which may be late, and whose
// clock may be a little faster: by then the charge has left by itself. Until then no other window
// has the same mark. A calendar period has a key of its own, so its mark always serves.
func (r *receipt) over(b *bucket.Bucket, age time.Duration) bool {
	return b.Ends == 0 && age+age/1024+r.lateFor(b) >= period(b)
}

// lateFor returns how late Redis may do what it is asked about a bucket. Half a period bounds it for
// windows: else a long timeout would leave nothing of a short one to give back.
func (r *receipt) lateFor(b *bucket.Bucket) time.Duration {
	if b.Flows() {
		return r.late
	}
	return min(r.late, max(minLate, period(b)/2))
}

// period returns the period of a bucket.
func period(b *bucket.Bucket) time.Duration {
	return time.Duration(min(b.Period, int64(1<<62)/1e6)) * time.Millisecond
}
