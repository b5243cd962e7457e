package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// adHoc is a question of a method about a key or a client, and its memory for up to two limits. It is
// used again.
type adHoc struct {
	limiter      *Limiter
	observed     observation
	set          *limitSet
	asks         [1]engine.Ask
	answers      [1]engine.Answer
	inUse        bool // the store may still have the memory, as it did not answer
	own          limitSet
	bucketMemory [2]bucket.Bucket
	limitMemory  [2]Limit
}

var errNotMade = fmt.Errorf("%w: the limiter was not made by NewLimiter or NewLocal", ErrUnavailable)

// ask returns the question of a method's arguments, or all faults in them. It is to be put back.
func (l *Limiter) ask(key string, n int, limits []Limit) (*adHoc, error) {
	q := l.adHoc()
	q.own = limitSet{limits: q.limitMemory[:0]}
	q.own.rules.Reuse(q.bucketMemory[:])
	q.set, q.observed = &q.own, observe(l.defaults.observers, "")
	err := checkArguments(key, n, q.own.add(l.defaults.algorithm, limits))
	if err == nil && l.engine == nil {
		err = errNotMade
	}
	q.asks[0] = engine.Ask{
		Client: key, Set: &q.own.rules, Scope: rules.Tokens, Failure: engine.Failure(l.defaults.failure), Lease: l.defaults.lease,
	}
	return q, err
}

// adHoc returns memory for a question.
func (l *Limiter) adHoc() *adHoc {
	q, ok := l.adHocs.Get().(*adHoc)
	if !ok {
		q = &adHoc{limiter: l}
	}
	q.answers[0] = engine.Answer{}
	return q
}

// putBack keeps the memory of a question for another one, unless the store may still have it.
func (q *adHoc) putBack() {
	if !q.inUse && q.answers[0].Err == nil {
		q.limiter.adHocs.Put(q)
	}
}

// keepsSet returns the error of a change, of which the store may still have the set.
func (q *adHoc) keepsSet(err error) error {
	q.inUse = err != nil
	return err
}

// result returns the Result of the answer.
func (q *adHoc) result() Result { return q.set.result(q.limiter.engine, &q.answers[0]) }

// end records the decision on n tokens, and returns its Result.
func (q *adHoc) end(ctx context.Context, n int, err error) (Result, error) {
	var r Result
	if q.answers[0].Decided {
		r = q.result()
	}
	return q.endWith(ctx, n, r, err)
}

// endWith records a result, and returns it.
func (q *adHoc) endWith(ctx context.Context, n int, r Result, err error) (Result, error) {
	if q.observed.observers != nil {
		a, local := &q.answers[0], q.limiter.engine.IsLocal()
		q.observed.event.Waited = a.Waited
		outcome := outcomeOf(r, Failure(q.asks[0].Failure), local, err)
		q.observed.record(ctx, outcome, n, r.Allowed, r, failure{err: err, store: a.Err})
	}
	return r, err
}

// checkBlockable reports why the limits cannot be blocked for d.
func (s *limitSet) checkBlockable(d time.Duration) error {
	switch {
	case d <= 0:
		return fmt.Errorf("%w: a block of %s; want more than zero", ErrInvalidLimit, d)
	case len(s.limits) == 0 && !s.rules.Prohibits():
		return fmt.Errorf("%w: %s is never counted, so it has no bucket to block", ErrInvalidLimit, s.unlimited)
	}
	return s.checkBlock(d)
}

// waited returns the error of a Wait from the result and the error of its last try.
func waited(res Result, n int, err error) error {
	if err == nil && !res.Allowed {
		return fmt.Errorf("%w: %s never allows %d at once, so there is nothing to wait for", ErrInvalidLimit, res.Limit, n)
	}
	return err
}

// checkArguments reports every error in the arguments that all methods have.
func checkArguments(key string, n int, err error) error {
	if err == nil && key != "" && n >= 1 {
		return nil
	}
	errs := []error{err}
	if key == "" {
		errs = append(errs, fmt.Errorf("%w: the key is empty", ErrNoKey))
	}
	if n < 1 {
		errs = append(errs, fmt.Errorf("%w: a cost of %d; want at least 1", ErrInvalidLimit, n))
	}
	return errors.Join(errs...)
}
