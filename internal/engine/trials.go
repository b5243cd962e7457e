package engine

import (
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// takeWithTrials takes what a request asks for, and decides on its trials at the same time.
func (e *Engine) takeWithTrials(ctx context.Context, r Request) error {
	one, live := r, len(r.Asks)-r.Trials // the Asks in force, if any, are one
	one.Asks, one.Answers, one.Trials = r.Asks[:live], r.Answers[:live], 0
	return atOnce(2, func(i int) error {
		switch {
		case i == 1:
			e.takeTrials(ctx, r.Asks[live:], r.Answers[live:])
		case live > 0:
			return e.Take(ctx, one)
		}
		return nil
	})[0]
}

// takeTrials decides on each of some Asks by itself, on all at the same time.
func (e *Engine) takeTrials(ctx context.Context, asks []Ask, answers []Answer) {
	if len(asks) == 1 { // it may have a lease
		failed := goroutine.ErrGoexit // a hook of the client may end the goroutine
		defer func() { answers[0].Failed = failed }()
		failed = e.takeNow(ctx, asks, answers)
		return
	}
	failed, start := e.Ready(ctx), time.Now()
	if failed == nil && !e.background.Begin() {
		failed = errClosed()
	}
	for i := range answers {
		if answers[i].reset(); failed != nil {
			answers[i].Failed = failed
		} else {
			answers[i].Failed = goroutine.ErrGoexit
		}
	}
	if failed != nil {
		return
	}
	defer e.background.Done()
	var decisions []*several
	for i := range asks {
		if !asks[i].Set.Counted {
			answers[i].answerStatic(&asks[i])
			answers[i].Failed = nil
			continue
		}
		d := e.several(asks[i:i+1], answers[i:i+1])
		defer d.release()
		if d.knows() {
			answers[i].Failed = nil
			continue
		}
		d.begin()
		decisions = append(decisions, d)
	}
	e.decideEach(ctx, start, decisions, func(i int, err error) { decisions[i].members[0].answer.Failed = err })
}
