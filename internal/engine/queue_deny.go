package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// errTooLate is the error of a Wait whose context ends before there are tokens.
var errTooLate = fmt.Errorf("ginlimit: the tokens come after the deadline: %w", context.DeadlineExceeded)

// deny denies a request that has just tried, or looked. It bans for tokens that it lacks.
func (w *waiter) deny(l lack) error {
	if w.endless {
		return errTooLate
	}
	answer := &w.Answers[l.ask]
	if err := w.ban(l); err != nil || !denies(*answer) {
		return err
	}
	answer.RetryAfter = max(answer.RetryAfter, w.retryAfter(l)) // those who wait before need as long
	answer.ResetAfter = max(answer.ResetAfter, answer.RetryAfter)
	answer.QueueFull = w.full
	return nil
}

// rest returns a context for calls that follow the last try: together they take one timeout.
func (w *waiter) rest() (context.Context, context.CancelFunc) {
	start := w.tried
	if time.Since(start) >= w.e.Timeout { // it has waited since
		start = time.Now()
	}
	return w.e.within(w.ctx, start)
}

// ban bans the clients whose tokens come too late, as the request is denied: while it waits, none is banned. If
// there are tokens meanwhile, it tries once more.
func (w *waiter) ban(l lack) error {
	var ctx context.Context // of all calls, once there is one
	again := false
	for i := range w.Asks {
		if late := w.tooLate(i) || i == l.ask && !l.slot; !late || !w.Asks[i].waits() {
			continue
		}
		if w.Asks[i].turn = 0; ctx == nil {
			own, cancel := w.rest()
			defer cancel()
			ctx = own
		}
		denied, err := w.e.banFor(ctx, w.Asks[i:i+1], w.Answers[i:i+1])
		if err != nil {
			return err
		}
		again = again || !denied
	}
	if !again {
		return nil
	}
	return w.e.takeNow(ctx, w.Asks, w.Answers)
}

// denyBehind denies a request that finds no place in a line, would wait there for too long, or has
// waited there without a turn. It hears when the line's tokens come, without asking Redis; only if a
// denial bans, or another policy may deny for longer, it has to be asked.
func (w *waiter) denyBehind(l lack) error {
	if w.endless {
		return errTooLate
	}
	if done, err := w.look(l, false); done {
		return err
	}
	ask, answer := &w.Asks[l.ask], &w.Answers[l.ask]
	ask.Set = ask.Set.Now() // a calendar period may be over
	wait := w.retryAfter(l)
	answer.Verdict = rules.Verdict{Resource: l.resource, RetryAfter: wait, ResetAfter: wait}
	if !l.slot {
		answer.ResetAfter += min(ask.Set.Regain(ask.Set.Burst-ask.N, 0, 1), rules.Longest-wait)
	}
	answer.Decided, answer.Source, answer.Hash, answer.QueueFull = true, FromStatic, w.e.Hash(&ask.Subject), w.full
	if buckets := ask.Set.Buckets(rules.All); l.resource >= 0 && ask.Report != rules.ReportNone {
		b := &buckets[l.resource]
		status := rules.Status{Resource: int32(l.resource), Full: min(b.Burst, b.Capacity), More: wait, Denies: true}
		if ask.Report == rules.ReportFull {
			status.Retry, status.Reset = wait, answer.ResetAfter
		}
		answer.Statuses = append(answer.Statuses, status)
	}
	return nil
}

// look looks, for a request that others stand before, at what it need not lack: it is done if the request
// is banned, or lacks tokens for too long or of the line in which it has no room. The store is asked only if that
// may tell more than this process knows.
func (w *waiter) look(l lack, room bool) (done bool, err error) {
	w.tried = time.Now()
	asks := len(w.Asks) > 1 || w.Asks[0].Set.Bans() || room && w.Asks[0].attempts()
	if err := w.e.findDenials(w.ctx, w.Asks, w.Answers, asks); err != nil {
		return true, err
	}
	outright, err := w.banOutright()
	if err != nil {
		return true, err
	}
	own, waits := w.lacks()
	switch denied := denies(w.Answers[l.ask]); {
	case outright || !waits && slices.ContainsFunc(w.Answers, denies):
		return true, w.ban(lack{ask: none})
	case denied && !room:
		return true, w.deny(w.lackAt(l.ask))
	case waits && own.at.After(w.until(w.end(own.ask))):
		w.full = w.full && own.ask == l.ask // not of another policy's line
		return true, w.deny(own)
	}
	for i := range w.Answers {
		w.Answers[i].reset()
	}
	return false, nil
}

// banOutright bans the clients of Asks without a queue that were found to deny, all at the same time. It is false if
// none denies.
func (w *waiter) banOutright() (denied bool, err error) {
	ctx, cancel := w.rest()
	defer cancel()
	e, asks, answers := w.e, w.Asks, w.Answers // so that w need not be on the heap
	still := make([]bool, len(asks))
	errs := atOnce(len(asks), func(i int) (err error) {
		if denies(answers[i]) && !asks[i].queues() {
			still[i], err = e.banFor(ctx, asks[i:i+1], answers[i:i+1])
		}
		return err
	})
	return slices.Contains(still, true), errors.Join(errs...)
}

// findDenials finds which Asks lack tokens, or are banned, without taking anything. An answer is not decided if that
// is not known, and it does not ask.
func (e *Engine) findDenials(ctx context.Context, asks []Ask, answers []Answer, ask bool) error {
	for i := range asks {
		answers[i].reset()
		asks[i].Set = asks[i].Set.Now() // a calendar period may be over
		if answer := &answers[i]; asks[i].N == 0 || !asks[i].Set.Counts(rules.Tokens) {
			answer.Verdict, answer.Decided, answer.Source = rules.Verdict{Allowed: true}, true, FromStatic
		}
	}
	d := e.several(asks, answers)
	defer d.release()
	if d.knows(); ask {
		return d.lookAtRest(ctx, time.Now())
	}
	d.rest().release()
	return nil
}

// banFor denies one Ask, which was found to be denied, so that it bans: a look does not. It is false if there
// are tokens meanwhile, which are given back.
func (e *Engine) banFor(ctx context.Context, ask []Ask, answer []Answer) (denied bool, err error) {
	if ask[0].whichBan() == bucket.NoBans || answer[0].Banned || answer[0].Source == FromOpen {
		return true, nil
	}
	if !e.background.Begin() { // Close waits for what is given back
		return false, errClosed()
	}
	defer e.background.Done()
	ask[0].Settles, ask[0].Leases = true, false
	if ask[0].queues() && ask[0].attempts() { // nobody who waits is banned for want of a slot
		defer ask[0].leaveSlotsOut(&answer[0])()
	}
	if answer[0].withoutStore() { // nor is it asked a second time
		err = e.banHere(ctx, &ask[0], &answer[0])
	} else {
		err = e.takeNow(ctx, ask, answer)
	}
	if err != nil || !answer[0].Allowed {
		return true, err
	}
	e.giveBackAll(ctx, []Charge{answer[0].Charge(&ask[0])})
	answer[0].attempt = 0
	return false, nil
}

// leaveSlotsOut has an Ask ask for tokens alone, until the function that it returns is called: then its answer has the
// slots as they were found before.
func (a *Ask) leaveSlotsOut(answer *Answer) (end func()) {
	slots := slices.Clone(answer.Statuses)
	slots = slices.DeleteFunc(slots, func(s rules.Status) bool { return int(s.Resource) != a.Set.Slots() })
	a.scope = rules.Tokens
	return func() {
		a.scope = rules.All
		answer.Statuses = append(answer.Statuses, slots...)
	}
}

// banHere is banFor where this process decides, as the store did not.
func (e *Engine) banHere(ctx context.Context, ask *Ask, answer *Answer) error {
	answer.reset()
	d := e.emptySeveral()
	defer d.release()
	d.add(ask, answer)
	d.begin()
	d.groups[0].err = answer.Err
	return d.end(ctx, time.Now())
}
