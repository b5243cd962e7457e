package engine

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/goroutine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// several is a decision on several Asks as one: the tokens of all are taken, or of none.
//
// What this process knows goes first: if it knows of a denial, nothing is charged anywhere. Else the store is
// asked about all at the same time, in as few scripts as can be; what they took is given back if one denies.
// Without the store this process decides on all under one lock. So every Ask has an answer, and it is known
// which of those that deny denies for longest.
type several struct {
	e       *Engine
	members []member
	groups  []group
	memory  struct { // for the usual number of Asks
		members [4]member
		groups  [1]group
		order   [4]*member
		calls   [4]*dispatch.Call
	}
}

// member is one of several Asks, of which the answer is not static.
type member struct {
	ask    *Ask
	answer *Answer
	call   *dispatch.Call // on this Ask alone
	known  bool           // the deny cache denies it, or will
	of     *member        // whose tokens it looks at, or nil
	err    error          // why the store has not decided on it
}

// free reports whether an Ask wants no token, so that it denies nothing.
func (m *member) free() bool { return m.ask.N == 0 }

// takeSeveral takes the tokens of each Ask that counts, or of none.
func (e *Engine) takeSeveral(ctx context.Context, asks []Ask, answers []Answer) error {
	if !e.background.Begin() { // Close waits for what is given back, and reports how attempts end
		return errClosed()
	}
	defer e.background.Done()
	start := time.Now()
	d := e.several(asks, answers)
	defer d.release()
	if d.knows() {
		_ = d.lookAtRest(ctx, start) // the denial that is known answers
		return nil
	}
	never := slices.ContainsFunc(d.members, func(m member) bool { return !m.free() && m.call.Op.Charges == 0 })
	for i := range d.members {
		m := &d.members[i]
		if never { // one wants more than its limits ever hold
			m.call.Op.Charges = 0
		}
		if m.ask.attempts() {
			e.beginAttempt(m.call, m.ask)
		}
	}
	if e.redis == nil {
		all := d.all()
		e.decideHere(all, true)
		e.endHere(all)
		return nil
	}
	return d.take(ctx, start)
}

// several returns a decision on the Asks whose answers are not static.
func (e *Engine) several(asks []Ask, answers []Answer) *several {
	d := e.emptySeveral()
	for i := range asks {
		ask, answer := &asks[i], &answers[i]
		if answer.Decided && answer.Source == FromStatic {
			continue
		}
		c := e.call(takeOf(ask), &ask.Subject, ask.scope)
		c.Op.Bans = ask.whichBan()
		d.members = append(d.members, member{ask: ask, answer: answer, call: c})
		answer.begin(e, ask, c)
	}
	return d
}

// emptySeveral returns a decision on nothing yet.
func (e *Engine) emptySeveral() *several {
	d, ok := e.decisions.Get().(*several)
	if !ok {
		d = new(several)
	}
	d.e, d.members, d.groups = e, d.memory.members[:0], d.memory.groups[:0]
	return d
}

// release ends the attempts that have not ended, as a hook of the client may end the goroutine, and keeps the
// decision and its calls for another use.
func (d *several) release() {
	for i := range d.groups {
		g := &d.groups[i]
		if len(g.calls) > 1 {
			d.e.release(g.call)
		}
		if g.recalled {
			for _, m := range g.members {
				m.call = nil
			}
		}
	}
	for i := range d.members {
		if c := d.members[i].call; c != nil {
			d.e.loseAttempt(c)
			d.e.release(c)
		}
	}
	e := d.e
	*d = several{}
	e.decisions.Put(d)
}

// knows reports whether the deny cache denies one of the Asks.
func (d *several) knows() (known bool) {
	for i := range d.members {
		m := &d.members[i]
		if m.known = d.e.isDenied(m.call, m.ask); m.known {
			m.answer.judge(m.call, m.ask, FromCache)
			known = true
		}
	}
	return known
}

// lookAtRest looks at the tokens of the Asks that the deny cache does not deny, as one of them may deny for
// longer. It does so once for a denial.
func (d *several) lookAtRest(ctx context.Context, start time.Time) error {
	rest := d.rest()
	defer rest.release()
	most, _ := d.beside()
	for i := range d.members {
		if m := &d.members[i]; m.known && (m.answer.RetryAfter == rules.Never || d.e.denied.Looked(denial(m.call), most)) {
			return nil
		}
	}
	if err := d.look(ctx, start, rest); err != nil || rest.anyFailed() {
		return err
	}
	_, least := d.beside()
	for i := range d.members {
		if m := &d.members[i]; m.known {
			d.e.denied.SetBeside(denial(m.call), least)
		}
	}
	return nil
}

// beside identifies the Asks that do not deny, as far as is known, of those that are decided on together: with the most
// tokens that one wants, and the fewest.
func (d *several) beside() (most, least denycache.Beside) {
	most.Of, least.N = 1, math.MaxInt64
	for i := range d.members {
		if m := &d.members[i]; !m.known {
			most.Of += denial(m.call).Hash
			most.N, least.N = max(most.N, m.ask.N), min(least.N, m.ask.N)
		}
	}
	least.Of = most.Of
	return most, least
}

// rest returns a look at the tokens of the Asks that are not known to be denied, and that no earlier look has found to
// be. It does not look at slots: nobody knows for how long one is held.
func (d *several) rest() *several {
	rest := d.e.emptySeveral()
	for i := range d.members {
		m := &d.members[i]
		if m.known || m.free() || !m.ask.Set.Counts(rules.Tokens) {
			continue
		}
		ask := *m.ask
		ask.scope, ask.Recalls = rules.Tokens, false
		c := d.e.call(bucket.Peek(ask.N), &ask.Subject, ask.scope)
		if m.known = d.e.isRemembered(c, &ask); m.known {
			m.answer.judge(c, &ask, FromCache)
			d.e.release(c)
			continue
		}
		rest.members = append(rest.members, member{ask: &ask, answer: m.answer, call: c, of: m})
	}
	return rest
}

// look looks at the tokens of the rest, and takes nothing.
func (d *several) look(ctx context.Context, start time.Time, rest *several) error {
	if len(rest.members) == 0 {
		return nil
	}
	if d.e.redis == nil {
		d.e.decideHere(rest.all(), false)
		return nil
	}
	rest.group()
	rest.ask(ctx, start)
	failed, err := rest.failed(ctx)
	if err != nil {
		return err
	}
	d.e.decideHere(failed, false)
	for i := range rest.members {
		if m := &rest.members[i]; m.err == nil {
			m.call.Op.Charges = 1 // of what is remembered
			m.of.known = m.denied()
		}
	}
	_, beside := d.beside()
	for i := range rest.groups {
		rest.groups[i].end(ctx, d.e, false, beside, nil)
	}
	return nil
}

// take has Redis decide, on one server in one script.
func (d *several) take(ctx context.Context, start time.Time) error {
	d.group()
	d.ask(ctx, start)
	failed, err := d.failed(ctx)
	allowed := err == nil && d.allows()
	if err == nil && failed != nil {
		allowed = d.e.decideHere(failed, allowed) && allowed
		d.e.endHere(failed)
	}
	var beside denycache.Beside
	if !allowed && failed == nil {
		for i := range d.members {
			d.members[i].known = d.members[i].denied()
		}
		_, beside = d.beside()
	}
	var taken []Charge
	for i := range d.groups {
		taken = d.groups[i].end(ctx, d.e, allowed, beside, taken)
	}
	if taken != nil {
		within, cancel := d.e.within(ctx, start)
		defer cancel()
		d.e.giveBackAll(within, taken)
	}
	return err
}

// ask asks the store about all groups, and apart about those that a server refuses together, in the time of one
// decision.
func (d *several) ask(ctx context.Context, start time.Time) {
	if d.send(ctx); !d.separate() {
		return
	}
	within, cancel := d.e.within(ctx, start)
	defer cancel()
	if d.send(within); !d.anyFailed() {
		d.e.redis.Separate() // refused together, answered alone
	}
}

// denied reports whether the store found that it denies an Ask.
func (m *member) denied() bool {
	_, fits := m.ask.Set.Fit(m.ask.scope, m.call.States, m.call.Op)
	return !fits && !m.free()
}

// all returns all members.
func (d *several) all() (members []*member) {
	for i := range d.members {
		members = append(members, &d.members[i])
	}
	return members
}

// giveBackAll gives back what was just taken, all at the same time, as the request is denied. It waits for that as
// long as the context lasts. What cannot be given back stays taken.
func (e *Engine) giveBackAll(ctx context.Context, taken []Charge) {
	e.background.Detached(ctx, e.Timeout, func(ctx context.Context) {
		atOnce(len(taken), func(i int) error { return e.giveBack(ctx, &taken[i]) })
	})
}

// takeWithTrials takes what a request asks for, and decides on each of its trials, at the same time.
func (e *Engine) takeWithTrials(ctx context.Context, r Request) error {
	live := len(r.Asks) - r.Trials
	first := min(live, 1) // the Asks in force, if any, are one
	errs := atOnce(first+r.Trials, func(i int) error {
		if i < first {
			return e.Take(ctx, Request{Asks: r.Asks[:live], Answers: r.Answers[:live], Waited: r.Waited, Waits: r.Waits})
		}
		at := live + i - first
		failed := goroutine.ErrGoexit // a hook of the client may end the goroutine
		defer func() { r.Answers[at].Failed = failed }()
		failed = e.takeNow(ctx, r.Asks[at:at+1], r.Answers[at:at+1])
		return nil
	})
	if first == 0 {
		return nil
	}
	return errs[0]
}
