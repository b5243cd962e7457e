package engine

import (
	"context"
	"slices"
	"time"

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
	answered bool             // by the script or an error
	err      error            // why the store has not decided
	charges  int64            // that the script has made of each
	surplus  bool             // this process has all slots of one already
	recalled bool             // its calls belong to recall
}

// groups are what the store is asked about at the same time.
type groups []group

// join makes the call of each group of several.
func (g groups) join(e *Engine) {
	for i := range g {
		if one := &g[i]; len(one.calls) > 1 {
			one.call = e.call(bucket.Op{}, &one.members[0].ask.Subject, rules.All)
			wire.Join(one.call, one.calls)
		}
	}
}

// askGroups asks the store about all groups of some decisions, and apart about the members of those that a server
// refuses together, in the time of one decision.
func askGroups(ctx context.Context, e *Engine, start time.Time, all ...*groups) {
	sendGroups(ctx, e, all)
	separated := false
	for _, g := range all {
		if slices.ContainsFunc(*g, refused) {
			*g, separated = g.separate(e), true
		}
	}
	if !separated {
		return
	}
	within, cancel := e.within(ctx, start)
	defer cancel()
	sendGroups(within, e, all)
	if !slices.ContainsFunc(all, func(g *groups) bool { return g.anyFailed() }) {
		e.redis.Separate() // refused together, answered alone
	}
}

// refused reports whether a server refuses the members of a group together, as their keys are several: as a node of a
// cluster or a proxy does.
func refused(g group) bool { return len(g.calls) > 1 && redisstore.RefusesKeys(g.err) }

// sendGroups asks the store about the groups that have no answer, all at the same time.
func sendGroups(ctx context.Context, e *Engine, all []*groups) {
	if len(all) == 1 && len(*all[0]) == 1 && !(*all[0])[0].answered {
		only := &(*all[0])[0]
		only.read(e, e.store.Do(ctx, only.call))
		return
	}
	var open []*group
	var calls []*dispatch.Call
	for _, of := range all {
		for i := range *of {
			if g := &(*of)[i]; !g.answered {
				open, calls = append(open, g), append(calls, g.call)
			}
		}
	}
	for i, err := range e.redis.DoAll(ctx, calls) {
		open[i].read(e, err)
	}
}

// read reads what the script of a group found and did.
func (g *group) read(e *Engine, err error) {
	if g.answered, g.err = true, err; err != nil {
		return
	}
	c := g.call
	if len(g.calls) > 1 {
		wire.Split(c, g.calls)
	}
	g.charges = c.Op.Charges
	for _, m := range g.members {
		m.call.Sent, m.call.Received = c.Sent, c.Received
		fit, fits := m.ask.Set.Fit(m.call.States, c.Op.Charges, m.call.Op.N)
		g.charges, m.fits = min(g.charges, fit), fits
	}
	for _, m := range g.members {
		switch {
		case g.charges == 0:
		case e.keepsSlot(m.call):
			m.answer.attempt = m.call.Attempt.Number
		default:
			g.surplus, m.fits = true, false
		}
		m.known = !m.fits && !m.free()
	}
}

// separate returns the groups, with a group of each member of those that are refused.
func (g groups) separate(e *Engine) (apart groups) {
	for _, one := range g {
		if !refused(one) {
			apart = append(apart, one)
			continue
		}
		e.release(one.call)
		for i, m := range one.members {
			apart = append(apart, group{members: one.members[i : i+1], calls: one.calls[i : i+1], call: m.call})
		}
	}
	return apart
}

// anyFailed reports whether the store has not decided on all groups.
func (g groups) anyFailed() bool {
	return slices.ContainsFunc(g, func(g group) bool { return g.err != nil })
}

// allowed reports whether each group on which the store has decided took what it costs.
func (g groups) allowed() bool {
	return !slices.ContainsFunc(g, func(g group) bool {
		return g.err == nil && (g.charges == 0 || g.surplus) && !g.members[0].free()
	})
}

// failed returns the members on which the store has not decided. The error says why this process does not decide
// on them either: one fails closed, the caller has left, or the engine ends.
func (g groups) failed(ctx context.Context, e *Engine) (members []*member, err error) {
	for i := range g {
		if why := g[i].err; why != nil {
			e.loseLeases(ctx, why)
			for _, m := range g[i].members {
				m.answer.Err = why
				if members = append(members, m); err == nil && e.failsClosed(ctx, m.ask, why) {
					err = Unavailable(ctx, why)
				}
			}
		}
	}
	if err != nil && !left(ctx) {
		for _, m := range members { // the others are not at fault
			if !e.failsClosed(ctx, m.ask, m.answer.Err) {
				m.answer.Err = nil
			}
		}
	}
	return members, err
}

// end fills in the answers of a group on which the store has decided, and ends its attempts. If the request is not
// allowed, it appends what was taken of it, which is to be given back.
func (g *group) end(ctx context.Context, e *Engine, allowed bool, beside denycache.Beside, taken []Charge) []Charge {
	if g.err != nil && !allowed {
		g.recall(ctx, e)
	}
	for _, m := range g.members {
		a, charges := m.answer, g.charges
		if g.err == nil {
			a.Source = FromStore
			if m.ask.Settles || charges > 0 && !allowed {
				a.receipt = newReceipt(e.Timeout, m.call.Sent, m.call.States)
			}
			if !allowed {
				a.Granted = charges * m.call.Op.N
			}
		}
		if !allowed && a.Granted > 0 {
			taken, charges = append(taken, m.takeBack()), 0
		}
		switch {
		case g.err == nil:
			e.judge(m.ask, a, m.ask.Set, m.call.States, m.call.Op.N, charges, m.fits)
			g.note(e, m, beside)
		case !g.recalled: // this process has decided, or nobody
			e.loseAttempt(m.call)
		}
	}
	return taken
}

// note remembers what the store has found of a member, and ends its attempt if that was not granted.
func (g *group) note(e *Engine, m *member, beside denycache.Beside) {
	if g.charges == 0 {
		e.endAttempt(m.call, m.answer)
	}
	if m.of != nil {
		m.call.Op.Charges = 1 // of what is remembered
	}
	switch {
	case !m.fits:
		e.remember(m.call, beside)
	case g.charges > 0 || m.ask.looks != nothing:
		e.denied.Charge(denial(m.call))
	}
}

// recall begins to give back what a late script takes, as the request is denied or its caller has left.
func (g *group) recall(ctx context.Context, e *Engine) {
	asks := make([]*Ask, len(g.members))
	for i, m := range g.members {
		if !m.ask.Recalls || m.call.Attempt.Number > 0 && !left(ctx) {
			return // it takes nothing; or its attempt has ended, and the script does not say whether such a one takes tokens
		}
		asks[i] = m.ask
	}
	g.recalled = e.recall(g.call, asks, g.calls)
}
