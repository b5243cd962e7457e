package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// take waits until a slot is free, and reports whether it got one.
func take(slots chan struct{}, patience time.Duration) bool {
	select {
	case slots <- struct{}{}:
		return true
	case <-time.After(patience):
		return false
	}
}

// askSource returns what the source says. It does not wait for a source that outlives its context by more than a second;
// such a question keeps its slot until the source returns.
func (p *Plans) askSource(client string) (plan, error) {
	late, cancel := context.WithTimeout(context.Background(), sourceTimeout+planRecheck) // an answer that is there counts
	defer cancel()
	return dispatch.Bounded(late, 0, func() (plan, error) {
		defer func() { <-p.questions }()
		ctx, end := context.WithTimeout(late, sourceTimeout)
		defer end()
		limits, err := p.source(ctx, client)
		if errors.Is(err, ErrUnknownClient) {
			return plan{err: ErrUnknownClient}, nil
		}
		if err == nil {
			_, err = newLimitSet(TokenBucket, limits...)
		}
		for _, limit := range limits {
			if err == nil && !limit.named() { // Redis keeps its text
				err = fmt.Errorf("%w: %s: no time zone has that name", ErrInvalidLimit, limit)
			}
		}
		return plan{limits: slices.Clone(limits)}, err // the source may change its own
	})
}

// fallback returns the newer of two old plans for a second more, or the error if none serves.
func fallback(err error, known, kept *plan) *plan {
	now, old, next := time.Now(), known, &plan{err: fmt.Errorf("%w: the source of plans: %w", ErrUnavailable, err)}
	if kept.ends.After(known.ends) {
		old = kept
	}
	switch {
	case old.serves(now):
		next = old.goBy(now, planRest)
	case err != errSourceBusy: // the next request waits for a slot of its own
		next.until = now.Add(planRecheck)
	}
	next.ahead, next.invalid = known.ahead, known.invalid
	return next
}

// reason returns what the log may say of a failure: nothing that the source has put into an error.
func reason(err error, took time.Duration) string {
	switch {
	case err == dispatch.ErrPanic || err == dispatch.ErrGoexit:
		return err.Error()
	case errors.Is(err, ErrInvalidLimit):
		return "invalid limit"
	case took >= sourceTimeout:
		return "timeout"
	}
	return fmt.Sprintf("%T", err)
}

// log writes a line when the source has failed, at most once a minute, and then one when it has not for a second.
func (p *Plans) log(err error, took time.Duration) {
	last, now, line := p.failing.Load(), time.Now(), func() {}
	switch {
	case err != nil && p.failures.Allow():
		p.failing.Store(&now)
		text := reason(err, took)
		line = func() { p.config.logger.Warn("ginlimit: the source of plans fails; old plans serve", "reason", text) }
	case err != nil && last != nil:
		p.failing.CompareAndSwap(last, &now)
	case last != nil && now.Sub(*last) >= planRecheck && p.failing.CompareAndSwap(last, nil):
		line = func() { p.config.logger.Info("ginlimit: the source of plans answers again") }
	}
	<-dispatch.Isolate(func() (any, error) { line(); return nil, nil }) // a log handler may panic too
}
