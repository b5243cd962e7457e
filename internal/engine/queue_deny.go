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
	if !slices.ContainsFunc(w.Answers, denies) {
		return nil
	}
	ctx, cancel := w.rest() // of all calls
	defer cancel()
	_, again, err := w.banEach(ctx, func(i int) bool {
		return w.Asks[i].waits() && (w.tooLate(i) || i == l.ask && !l.slot)
	})
	if err != nil || !again {
		return err
	}
	return w.e.takeNow(ctx, w.Asks, w.Answers)
}

// banEach denies Asks that were found to be denied, each by itself and all at the same time, so that they ban: a look
// does not. It reports whether one still denies, and whether there are tokens for one meanwhile, which are given back.
func (w *waiter) banEach(ctx context.Context, bans func(i int) bool) (denied, allowed bool, err error) {
	if !w.e.background.Begin() { // Close waits for what is given back
		return false, false, errClosed()
	}
	defer w.e.background.Done()
	var decisions []*several
	for i := range w.Asks {
		if !bans(i) {
			continue
		}
		ask, answer := &w.Asks[i], &w.Answers[i]
		if ask.turn = 0; ask.whichBan() == bucket.NoBans || answer.Banned || answer.Source == FromOpen {
			denied = true
			continue
		}
		if ask.Settles = true; ask.queues() && ask.attempts() { // nobody who waits is banned for want of a slot
			defer ask.leaveSlotsOut(answer)()
		}
		isHere := answer.Source == FromLocal
		answer.reset()
		d := w.e.emptySeveral()
		defer d.release()
		d.add(ask, answer)
		decisions = append(decisions, d)
		if d.begin(); isHere { // nor is the store asked a second time
			d.groups[0].answered, d.groups[0].err = true, answer.Err
		}
	}
	if decisions == nil {
		return denied, false, nil
	}
	w.e.decideEach(ctx, time.Now(), decisions, func(_ int, why error) { err = errors.Join(err, why) })
	var taken []Charge
	for _, d := range decisions {
		if m := d.members[0]; m.answer.Allowed {
			taken = append(taken, m.takeBack())
		} else {
			denied = true
		}
	}
	if taken != nil {
		w.e.giveBackAll(ctx, taken)
	}
	return denied, taken != nil, err
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
	ctx, cancel := w.rest()
	defer cancel()
	outright, _, err := w.banEach(ctx, func(i int) bool { return denies(w.Answers[i]) && !w.Asks[i].queues() })
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
