package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/fifo"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
)

const (
	// outagePause is the pause before a Wait tries again after Redis did not answer.
	outagePause = 200 * time.Millisecond
	// maxSleep is the longest pause between two tries of a Wait: another process may have given
	// tokens back.
	maxSleep = 10 * time.Second
)

// Wait takes n tokens as soon as they are there. The answer is the last try's; a denial
// without an error never ends.
//
// Of the callers in this process that wait for the same tokens, only the first tries; the others
// follow in order of arrival.
func (e *Engine) Wait(ctx context.Context, n int64, ask *Ask, answer *Answer) error {
	if err := e.ready(ctx); err != nil {
		return err
	}
	if answer.reset(); e.static(n, ask, answer) {
		return nil
	}
	ask.Bans, ask.Waits = bucket.NoBans, true // a try is no denial
	try := func() (done bool, err error) {
		err = e.takeOne(ctx, n, ask, answer)
		ask.again = true
		return err == nil && (answer.Allowed || answer.RetryAfter < 0) || err != nil && !waitsOn(ask, err), err
	}
	queue := e.queueOf(ask)
	first := e.waiting.Len(queue) == 0 || n > ask.Set.Burst() // of the latter, the answer is known
	var err error
	if first {
		var done bool
		if done, err = try(); done {
			return err
		}
	}
	tried := time.Now()
	deadline, limited := ctx.Deadline()
	if next := e.waiting.Next(queue); limited && deadline.Before(next) { // of the first
		return errTooLate()
	}
	leave, wake, _ := e.waiting.Join(ctx, e.closed, queue, math.MaxInt)
	answer.Waited += time.Since(tried)
	if leave != nil {
		defer leave()
	}
	next := tried.Add(answer.RetryAfter)
	// If others came at the same moment and had their turn before, its answer is old: tokens may
	// have been given back since.
	if !first || !e.waiting.Next(queue).IsZero() || !time.Now().Before(next) {
		next, err = tried, nil
	}
	for {
		if err != nil {
			next = time.Now().Add(outagePause)
		} else if limited && deadline.Before(next) {
			return errTooLate()
		}
		e.waiting.Expect(queue, next)
		if err := e.sleep(ctx, answer, min(maxSleep, time.Until(next)), wake); err != nil {
			return err
		}
		ask.Set = ask.Set.Now() // a calendar period may be over
		var done bool
		if done, err = try(); done {
			return err
		}
		next = time.Now().Add(answer.RetryAfter)
	}
}

// waitsOn reports whether a Wait goes on after an error: through an outage in which nobody else may
// decide.
func waitsOn(ask *Ask, err error) bool {
	return ask.Failure == FailClosed && errors.Is(err, ErrUnavailable) &&
		!redisstore.IsCommandError(err) && !errors.Is(err, dispatch.ErrClosed)
}

// errTooLate is the error of a Wait whose context ends before there are tokens.
func errTooLate() error {
	return fmt.Errorf("ginlimit: the tokens come after the deadline: %w", context.DeadlineExceeded)
}

// queueOf names the queue of the callers that wait for the same tokens: of the same buckets and tenant,
// down to the same floor, under the same ban, and with the same answer to an outage.
func (e *Engine) queueOf(ask *Ask) fifo.Name {
	text := strconv.AppendUint(nil, uint64(ask.Failure), 10)
	text = append(text, ask.Tenant.Name...)
	buckets := ask.Set.Buckets(min(ask.Scope, rules.Tokens))
	for i := range buckets {
		b := &buckets[i]
		id := b.ID
		if b.Ends != 0 { // callers of several periods keep their order
			id = id[:strings.LastIndexByte(id, ':')]
		}
		text = strconv.AppendQuote(append(text, ' '), id)
		for _, n := range [...]int64{b.Cost, b.Drain, b.Capacity} {
			text = strconv.AppendInt(append(text, ' '), n, 10)
		}
	}
	return fifo.Name{Key: string(e.key(ask)), Of: string(text)}
}

// sleep returns after a time, or when it is woken. The error is that the context or the engine
// ended before.
func (e *Engine) sleep(ctx context.Context, answer *Answer, d time.Duration, wake <-chan struct{}) error {
	timer, start := time.NewTimer(d), time.Now()
	defer func() {
		timer.Stop()
		answer.Waited += time.Since(start)
	}()
	select {
	case <-timer.C:
		return nil
	case <-wake:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	case <-e.closed:
		return errClosed()
	}
}
