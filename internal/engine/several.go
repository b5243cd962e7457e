package engine

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// several is a decision on several Asks as one, or on one with a ban or slots: the tokens of all are taken, or of none.
//
// What this process knows goes first: if it knows of a denial, nothing is charged anywhere. Else the store is
// asked about all at the same time, in as few scripts as can be; what they took is given back if one denies.
// Without the store this process decides on all under one lock. So every Ask has an answer, and it is known
// which of those that deny denies for longest.
type several struct {
	e       *Engine
	members []*member
	groups  groups
	memory  struct { // for the usual number of Asks
		all     [4]member
		members [4]*member
		groups  [1]group
		joint   [4]*member
		calls   [4]*dispatch.Call
	}
}

// several returns a decision on the Asks whose answers are not static.
func (e *Engine) several(asks []Ask, answers []Answer) *several {
	d := e.emptySeveral()
	for i := range asks {
		if answer := &answers[i]; !answer.Decided || answer.Source != FromStatic {
			asks[i].Recalls = asks[i].Recalls || len(asks) > 1
			d.add(&asks[i], answer)
		}
	}
	return d
}

// emptySeveral returns a decision on nothing yet.
func (e *Engine) emptySeveral() *several {
	d := e.decisions.Get().(*several)
	d.e, d.members, d.groups = e, d.memory.members[:0], d.memory.groups[:0]
	return d
}

// add adds an Ask.
func (d *several) add(ask *Ask, answer *Answer) {
	op := ask.op()
	op.Bans = ask.whichBan()
	c := d.e.call(op, &ask.Subject, ask.scope)
	answer.Hash = c.Hash
	d.addMember(member{ask: ask, answer: answer, call: c})
}

func (d *several) addMember(m member) {
	var place *member
	if n := len(d.members); n < len(d.memory.all) {
		place = &d.memory.all[n]
	} else {
		place = new(member)
	}
	*place = m
	d.members = append(d.members, place)
}

// take takes the tokens of each Ask, or of none, and releases the decision.
func (d *several) take(ctx context.Context) error {
	e := d.e
	defer d.release()
	if !e.background.Begin() { // Close waits for what is given back, and reports how attempts end
		return errClosed()
	}
	defer e.background.Done()
	start := time.Now()
	if d.knows() {
		_ = d.lookAtRest(ctx, start) // the denial that is known answers
		return nil
	}
	if d.begin(); e.redis == nil {
		e.decideHere(d.members, true)
		return nil
	}
	askGroups(ctx, e, start, &d.groups)
	return d.end(ctx, start)
}

// decideEach decides on what has begun, each decision by itself and all at the same time. It says how each ended.
func (e *Engine) decideEach(ctx context.Context, start time.Time, all []*several, ended func(i int, err error)) {
	asked := make([]*groups, len(all))
	for i, d := range all {
		asked[i] = &d.groups
	}
	if e.redis != nil {
		askGroups(ctx, e, start, asked...)
	}
	for i, d := range all {
		if e.redis == nil {
			e.decideHere(d.members, true)
			ended(i, nil)
		} else {
			ended(i, d.end(ctx, start))
		}
	}
}

// release ends the attempts that have not ended, as a hook of the client may end the goroutine, and keeps the
// decision and its calls for another use.
func (d *several) release() {
	e := d.e
	for i := range d.groups {
		g := &d.groups[i]
		if len(g.calls) > 1 {
			e.release(g.call)
		}
		for _, m := range g.members {
			if g.recalled {
				m.call = nil
			}
		}
	}
	for _, m := range d.members {
		if m.call != nil {
			e.loseAttempt(m.call)
			e.release(m.call)
		}
	}
	*d = several{}
	e.decisions.Put(d)
}

// begin begins the attempts, and forms the groups: one of all Asks, but for those that no script decides on beside
// others. These are the Asks of a tenant, a second one with a ban, those without a cost, and all if keys may be on
// several servers.
func (d *several) begin() {
	never := slices.ContainsFunc(d.members, func(m *member) bool { return !m.free() && m.call.Op.Charges == 0 })
	for _, m := range d.members {
		if never { // one wants more than its limits ever hold
			m.call.Op.Charges = 0
		}
		d.e.beginAttempt(m.call, m.ask)
	}
	if d.e.redis == nil {
		return
	}
	joint, together, banned := -1, len(d.members) == 1 || d.e.redis.Together(), false
	for i, m := range d.members {
		bans := m.call.Op.Bans != bucket.NoBans || m.call.Layout.Ban >= 0
		if !together || m.ask.Tenant.Name != "" || m.free() || bans && banned {
			d.groups = append(d.groups, group{members: d.members[i : i+1], calls: []*dispatch.Call{m.call}, call: m.call})
			continue
		}
		if banned = banned || bans; joint < 0 {
			joint = len(d.groups)
			d.groups = append(d.groups, group{members: d.memory.joint[:0], calls: d.memory.calls[:0], call: m.call})
		}
		g := &d.groups[joint]
		g.members, g.calls = append(g.members, m), append(g.calls, m.call)
	}
	d.groups.join(d.e)
}

// knows reports whether the deny cache denies one of the Asks.
func (d *several) knows() (known bool) {
	for _, m := range d.members {
		// A denial that banned nobody does not answer for one that is to ban.
		c := m.call
		m.known = c.Op.Charges > 0 && d.e.isDenied(c, m.ask) &&
			(c.Layout.Ban < 0 || c.Op.Bans == bucket.NoBans || c.States[c.Layout.Ban].Wait > 0)
		if m.known {
			d.e.judgeDenied(c, m.ask, m.answer)
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
	if len(rest.members) == 0 {
		return nil
	}
	most, _ := d.beside()
	for _, m := range d.members {
		if m.known && (m.answer.RetryAfter == rules.Never || d.e.denied.Looked(denial(m.call), most)) {
			return nil
		}
	}
	if rest.begin(); d.e.redis == nil {
		d.e.decideHere(rest.members, false)
		return nil
	}
	askGroups(ctx, d.e, start, &rest.groups)
	failed, err := rest.groups.failed(ctx, d.e)
	if err != nil {
		return err
	}
	d.e.decideHere(failed, false)
	for _, m := range rest.members {
		m.of.known = m.known
	}
	_, least := d.beside()
	for i := range rest.groups {
		rest.groups[i].end(ctx, d.e, false, least, nil)
	}
	for _, m := range d.members {
		if m.known && failed == nil {
			d.e.denied.SetBeside(denial(m.call), least)
		}
	}
	return nil
}

// beside identifies the Asks that do not deny, as far as is known, of those that are decided on together: with the most
// tokens that one wants, and the fewest.
func (d *several) beside() (most, least denycache.Beside) {
	most.Of, least.N = 1, math.MaxInt64
	for _, m := range d.members {
		if !m.known {
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
	for _, m := range d.members {
		if m.known || m.free() || !m.ask.Set.Counts(rules.Tokens) {
			continue
		}
		ask := *m.ask
		ask.scope, ask.Recalls = rules.Tokens, false
		c := d.e.call(bucket.Peek(ask.N), &ask.Subject, ask.scope)
		if m.known = d.e.isDenied(c, &ask); m.known {
			d.e.judgeDenied(c, &ask, m.answer)
			d.e.release(c)
			continue
		}
		rest.addMember(member{ask: &ask, answer: m.answer, call: c, of: m})
	}
	return rest
}

// end ends a decision on which the store was asked.
func (d *several) end(ctx context.Context, start time.Time) error {
	failed, err := d.groups.failed(ctx, d.e)
	allowed := err == nil && d.groups.allowed()
	if err == nil && failed != nil {
		allowed = d.e.decideHere(failed, allowed) && allowed
	}
	var beside denycache.Beside
	if !allowed && failed == nil {
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

// giveBackAll gives back what was just taken, all at the same time, as the request is denied. It waits for that as
// long as the context lasts. What cannot be given back stays taken.
func (e *Engine) giveBackAll(ctx context.Context, taken []Charge) {
	e.background.Detached(ctx, e.Timeout, func(ctx context.Context) {
		atOnce(len(taken), func(i int) error { return e.giveBack(ctx, &taken[i]) })
	})
}
