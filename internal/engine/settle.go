package engine

import (
	"context"
	"slices"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/receipt"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Charge is what a decision took.
type Charge struct {
	of      Subject
	n       int64 // tokens
	source  Source
	share   *rules.Set       // by which this process decided, if it did
	attempt int64            // that holds a slot; 0 is none
	receipt *receipt.Receipt // nil if nothing is to be given back
	tried   bool             // by a request that waits: giving it back wakes nobody, as it tries again and again
}

// Charge returns what the decision on an Ask took.
func (a *Answer) Charge(ask *Ask) Charge {
	return Charge{
		of: ask.Subject, n: a.Granted, source: a.Source, share: a.share, attempt: a.attempt, receipt: a.receipt,
	}
}

// Settle makes each charge as large as the work that was done, actual tokens, all at the same time: one
// timeout is enough for all. It returns the errors.
func (e *Engine) Settle(ctx context.Context, actual []int64, charges []Charge) (errs []error) {
	if len(charges) == 0 {
		return nil
	}
	errs = atOnce(len(charges), func(i int) error { return e.settle(ctx, &charges[i], actual[i]) })
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
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
func (e *Engine) settle(ctx context.Context, charge *Charge, actual int64) error {
	more := actual - charge.n
	switch {
	case more == 0 || !charge.hasBuckets():
		return nil
	case more > 0:
		return e.correct(ctx, charge, bucket.Op{Verb: bucket.Charge, N: more})
	}
	return e.correct(ctx, charge, e.returnOf(charge, -more, (*receipt.Receipt).Claims))
}

// hasBuckets reports whether tokens were taken of buckets.
func (c *Charge) hasBuckets() bool {
	return c.of.Set != nil && c.of.Set.Counts(rules.Limits) && c.source != FromOpen
}

// correct changes the buckets from which a charge was taken.
func (e *Engine) correct(ctx context.Context, charge *Charge, op bucket.Op) error {
	if charge.source == FromLocal {
		key := e.key(&charge.of)
		op.Tenant = charge.of.Tenant
		e.applyLocally(key, clientkey.Hash(key), charge.share.Buckets(rules.Limits), op)
		return nil
	}
	c := e.call(op, &charge.of, rules.Limits)
	defer e.release(c)
	if err := e.apply(ctx, c, !charge.tried); err != nil {
		return Unavailable(ctx, err)
	}
	return nil
}

// returnOf returns the operation that gives back the last n of a charge's tokens, by the claims
// that its receipt makes.
func (e *Engine) returnOf(charge *Charge, n int64,
	claims func(*receipt.Receipt, []bucket.Bucket, int64, bool) []bucket.Claim) bucket.Op {
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
	return e.correct(ctx, charge, e.returnOf(charge, charge.n, (*receipt.Receipt).ClaimsAtOnce))
}
