package engine

import (
	"context"
	"slices"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// group is the members on which one script decides.
type group struct {
	members  []*member
	calls    []*dispatch.Call // on each of them
	call     *dispatch.Call   // on all of them: a single one's own
	sent     bool
	err      error // why the store has not decided
	charged  bool  // the script has taken of each
	surplus  bool  // this process has all slots of one already
	recalled bool  // its calls belong to recall
}

// group forms the groups: one of all Asks, but for those that no script decides on beside others. These are the
// Asks of a tenant, a second one with a ban, those without a cost, and all if keys may be on several servers.
func (d *several) group() {
	joint, together, banned := -1, d.e.redis.Together(), false
	for i := range d.members {
		m := &d.members[i]
		bans := m.call.Op.Bans != bucket.NoBans || bucket.At(m.call.Buckets, bucket.Ban) >= 0
		if !together || m.ask.Tenant.Name != "" || m.free() || bans && banned {
			d.groups = append(d.groups, group{members: []*member{m}, calls: []*dispatch.Call{m.call}})
			continue
		}
		if banned = banned || bans; joint < 0 {
			joint = len(d.groups)
			d.groups = append(d.groups, group{members: d.memory.order[:0], calls: d.memory.calls[:0]})
		}
		g := &d.groups[joint]
		g.members, g.calls = append(g.members, m), append(g.calls, m.call)
	}
	for i := range d.groups {
		g := &d.groups[i]
		if g.call = g.calls[0]; len(g.calls) > 1 {
			g.call = d.e.call(bucket.Op{}, &g.members[0].ask.Subject, rules.All)
			wire.Join(g.call, g.calls)
		}
	}
}

// send asks the store about the groups that it was not asked about, all at the same time.
func (d *several) send(ctx context.Context) {
	if len(d.groups) == 1 {
		g := &d.groups[0]
		g.err = d.e.store.Do(ctx, g.call)
		g.read(d.e)
		return
	}
	calls := make([]*dispatch.Call, 0, len(d.groups))
	for i := range d.groups {
		if !d.groups[i].sent {
			calls = append(calls, d.groups[i].call)
		}
	}
	errs := d.e.redis.DoAll(ctx, calls)
	for i := range d.groups {
		if g := &d.groups[i]; !g.sent {
			g.err, errs = errs[0], errs[1:]
			g.read(d.e)
		}
	}
}

// read reads what the script of a group found and did.
func (g *group) read(e *Engine) {
	if g.sent = true; g.err != nil {
		return
	}
	c := g.call
	charges := c.Op.Charges
	for i := range c.Buckets {
		charges = c.Buckets[i].Fits(c.States[i], charges, c.Op.Tokens(i))
	}
	g.charged = charges > 0
	if len(g.calls) > 1 {
		wire.Split(c, g.calls)
	}
	for _, single := range g.calls {
		single.Sent, single.Received = c.Sent, c.Received
	}
	for i := 0; i < len(g.members) && g.charged; i++ {
		if m := g.members[i]; e.keepsSlot(m.call) {
			m.answer.attempt = m.call.Attempt.Number
		} else {
			g.surplus = true
		}
	}
}

// separate forms a group of each member of a group that a server refuses, as its keys are several: as a node of a
// cluster or a proxy does. It is false if there is none.
func (d *several) separate() bool {
	var groups []group
	for i := range d.groups {
		g := &d.groups[i]
		if len(g.calls) == 1 || !redisstore.RefusesKeys(g.err) {
			groups = append(groups, *g)
			continue
		}
		d.e.release(g.call)
		for i, m := range g.members {
			groups = append(groups, group{members: g.members[i : i+1], calls: g.calls[i : i+1], call: m.call})
		}
	}
	refused := len(groups) > len(d.groups)
	d.groups = groups
	return refused
}

// anyFailed reports whether the store has not decided on all groups.
func (d *several) anyFailed() bool {
	return slices.ContainsFunc(d.groups, func(g group) bool { return g.err != nil })
}

// allows reports whether each group on which the store has decided took what it costs.
func (d *several) allows() bool {
	return !slices.ContainsFunc(d.groups, func(g group) bool {
		return g.err == nil && (!g.charged || g.surplus) && !g.members[0].free()
	})
}

// failed returns the members on which the store has not decided. The error says why this process does not decide
// on them either: one fails closed, the caller has left, or the engine ends.
func (d *several) failed(ctx context.Context) (members []*member, err error) {
	for i := range d.groups {
		g := &d.groups[i]
		if g.err == nil {
			continue
		}
		d.e.loseLeases(ctx, g.err)
		for _, m := range g.members {
			m.err, m.answer.Err = g.err, g.err
			if members = append(members, m); err == nil && d.e.failsClosed(ctx, m.ask, g.err) {
				err = Unavailable(ctx, g.err)
			}
		}
	}
	if err != nil && !left(ctx) {
		for _, m := range members { // the others are not at fault
			if !d.e.failsClosed(ctx, m.ask, m.err) {
				m.answer.Err = nil
			}
		}
	}
	return members, err
}

// end fills in the answers of a group on which the store has decided, and ends its attempts. If the request is not
// allowed, it appends what the script has taken, which is to be given back.
func (g *group) end(ctx context.Context, e *Engine, allowed bool, beside denycache.Beside, taken []Charge) []Charge {
	if g.err != nil && !allowed {
		g.recall(ctx, e)
	}
	for _, m := range g.members {
		if g.err != nil { // this process has decided, or nobody
			if taken = m.takeBack(allowed, taken); !g.recalled {
				e.loseAttempt(m.call)
			}
			continue
		}
		_, fits := m.ask.Set.Fit(m.ask.scope, m.call.States, m.call.Op)
		m.answer.Decided, m.answer.Source = true, FromStore
		if m.judge(g.charged, fits); g.charged && !allowed {
			m.answer.receipt = newReceipt(e.Timeout)
		}
		m.answer.receipt.fill(m.call.Sent, m.call.States)
		if e.noteBan(m.call, m.ask, m.answer); !g.charged {
			e.endAttempt(m.call, m.answer, nil)
		}
		if g.charged || !fits {
			e.noteDecision(m.call, g.charged && fits, beside)
		}
		if taken = m.takeBack(allowed, taken); g.charged && !allowed {
			m.judge(false, fits)
		}
		m.answer.allowFree(m.ask.N)
	}
	return taken
}

// takeBack appends what was taken for a member, if the request is not allowed. It is a copy, as the caller may leave
// before it is given back.
func (m *member) takeBack(allowed bool, taken []Charge) []Charge {
	if allowed || m.answer.Granted == 0 {
		return taken
	}
	charge := m.answer.Charge(m.ask)
	charge.tried = m.ask.waits() && m.ask.again
	m.answer.attempt = 0
	return append(taken, charge)
}

// endHere ends the attempts of members on which this process has decided.
func (e *Engine) endHere(members []*member) {
	for _, m := range members {
		e.noteBan(m.call, m.ask, m.answer)
		e.endAttempt(m.call, m.answer, nil)
		m.answer.allowFree(m.ask.N)
	}
}

// denies reports whether an answer denies.
func denies(a Answer) bool { return a.Decided && !a.Allowed }

// judge fills in the verdict on a member, from the states that the store found.
func (m *member) judge(charged, fits bool) {
	charges := int64(0)
	if charged {
		charges = 1
	}
	m.answer.Verdict, m.answer.Statuses = m.ask.Set.JudgeOf(
		m.ask.scope, m.call.States, m.call.Op.N, charges, fits, m.ask.Report, m.answer.Statuses[:0])
}

// recall begins to give back what a late script takes, as the request is denied or its caller has left.
func (g *group) recall(ctx context.Context, e *Engine) {
	asks := make([]*Ask, len(g.members))
	for i, m := range g.members {
		if m.of != nil || m.call.Attempt.Number > 0 && !left(ctx) {
			return // it takes nothing; or its attempt has ended, and the script does not say whether such a one takes tokens
		}
		asks[i] = m.ask
	}
	g.recalled = e.recall(g.call, asks, g.calls)
}
