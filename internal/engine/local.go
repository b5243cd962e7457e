package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/memory"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// localStore is a store in this process, but for slots.
type localStore struct{ *memory.Store }

func (s localStore) Do(_ context.Context, c *dispatch.Call) error {
	c.Sent = time.Now()
	s.Store.Do(c.Key, c.Buckets, c.Op, c.States)
	return nil
}

func (localStore) Close() {}

// local is what this process does for a member, by the rules of a set: the Ask's, or its share. Of the member's
// call, which may still be on its way, only what its caller has set is read.
type local struct {
	*member
	memory.Part
	set   *rules.Set
	inUse func(inflight.Holders) int64 // how many slots are
	sent  bool                         // the call may have taken a slot in Redis

	charges int64 // that fit the states found
}

// takeLocally makes all Takes in this process, with a slot of each that has slots, if all are allowed and it
// may; else none. It reports whether all are allowed.
func (e *Engine) takeLocally(all []local, may bool) (allowed bool) {
	var fewParts [4]memory.Part // on the stack
	var fewTries [4]inflight.Try
	parts, tries := fewParts[:0], fewTries[:0]
	for i := range all {
		l := &all[i]
		parts = append(parts, l.Part)
		if l.call.Layout.Slots >= 0 {
			tries = append(tries, inflight.Try{Key: l.Key, Number: l.call.Attempt.Number, Sent: l.sent})
		}
	}
	e.slots.TryAll(tries, func() (takes bool) {
		n := 0
		for i := range all {
			if last := all[i].call.Layout.Slots; last >= 0 {
				all[i].States[last] = bucket.State{Level: all[i].inUse(tries[n].Of)}
				n++
			}
		}
		e.local.TakeAll(parts, func() bool {
			allowed = true
			for i := range all {
				l := &all[i]
				l.fit()
				allowed = allowed && (l.fits || l.free())
			}
			takes = allowed && may
			return takes
		})
		return takes
	})
	return allowed
}

// failsClosed reports whether there is no decision if the store has not made it.
func (e *Engine) failsClosed(ctx context.Context, ask *Ask, err error) bool {
	return left(ctx) || ask.Failure == FailClosed || errors.Is(err, dispatch.ErrClosed)
}

// fallBack decides on a call on which the store has not decided. The call may still be on its way:
// of it, only what its caller has set is read.
func (e *Engine) fallBack(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer, err error) error {
	e.loseLeases(ctx, err)
	answer.Err = err
	if e.failsClosed(ctx, ask, err) {
		return Unavailable(ctx, err)
	}
	e.decideHere([]*member{{ask: ask, answer: answer, call: c}}, true)
	return nil
}

// decideHere has this process decide on all members as one: the store has not, or is this process. It takes
// nothing unless it may. It reports whether all are allowed.
func (e *Engine) decideHere(members []*member, may bool) (allowed bool) {
	if slices.ContainsFunc(members, func(m *member) bool { return m.ask.attempts() }) {
		defer e.replica.HoldOthers()()
	}
	var few [4]local // on the stack
	all, sent := few[:0], time.Now()
	for _, m := range members {
		switch m.answer.Source = FromStore; {
		case e.redis == nil:
			all = append(all, m.local(m.ask.Set, m.call.States))
		case m.ask.Failure == FailLocal:
			all = append(all, m.alone(e))
		default:
			m.answer.Source = FromOpen
			open := m.local(m.ask.Set, make([]bucket.State, len(m.call.Buckets)))
			open.fit()
			e.end(&open, true, sent)
		}
	}
	allowed = e.takeLocally(all, may)
	for i := range all {
		e.end(&all[i], allowed && may, sent)
	}
	return allowed
}

// alone returns what this process does for a member while Redis does not decide: by its share.
func (m *member) alone(e *Engine) local {
	slots := slotsAlone{replicas: e.replicas(), away: errors.Is(m.answer.Err, dispatch.ErrOpen)}
	share := m.ask.Set.Share(slots.replicas)
	if m.ask.attempts() {
		slots.n, slots.siblings = m.ask.slots(), e.replica.HeldByOthers(m.call.Key)
		if !slots.away && e.slots.Holders(m.call.Key).Age < inflight.Renewal {
			share = share.WithSlotsOf(m.ask.Set)
		}
	}
	one := m.local(share, make([]bucket.State, len(m.call.Buckets)))
	one.sent, one.inUse = mayStillHappen(m.answer.Err) && !slots.away, slots.inUse
	m.answer.Source, m.answer.share = FromLocal, share
	return one
}

// local returns what this process does for a member by a set, with the states that it finds.
func (m *member) local(set *rules.Set, found []bucket.State) local {
	return local{
		member: m, Part: memory.Part{Key: m.call.Key, Buckets: set.Buckets(m.ask.scope), Op: m.call.Op, States: found},
		set: set, inUse: func(h inflight.Holders) int64 { return h.Own }, // no other process has any
	}
}

// fit finds what fits the states found.
func (l *local) fit() { l.charges, l.fits = l.set.Fit(l.States, l.Op.Charges, l.Op.N) }

// end fills in the answer of a member on which this process has decided, and ends its attempt.
func (e *Engine) end(l *local, takes bool, sent time.Time) {
	ask, answer := l.ask, l.answer
	charges := l.charges
	if !takes {
		charges = 0
	}
	e.judge(ask, answer, l.set, l.States, l.Op.N, charges, l.fits)
	if ask.Settles {
		answer.receipt = newReceipt(e.Timeout, sent, l.States)
	}
	e.endAttempt(l.call, answer)
}

// slotsAlone are the slots of a key on which this process decides.
type slotsAlone struct {
	n        int64
	replicas int64 // that may have some
	siblings int64 // slots that other engines of this process hold
	away     bool  // Redis is away, and not just late
}

// inUse returns how many slots are in use. While Redis is late, what others held when it said so last counts until
// Redis would have forgotten it. For a [inflight.Renewal] the slots are not divided: the replicas share what was free
// then, at least one for each. If others have some, they may have got what this process has released since.
func (s *slotsAlone) inUse(h inflight.Holders) int64 {
	held, others := h.Own+s.siblings, max(h.Others, s.siblings)
	switch free := s.n - others - h.Then; {
	case s.away || h.Age >= inflight.Life:
		return held
	case h.Own+others >= s.n:
		return max(held, s.n)
	case h.Age >= inflight.Renewal:
		return held
	default:
		part := max(min(free, 1), free/s.replicas)
		if h.Own >= h.Then+part || others > 0 && h.Alone >= part {
			return max(held, s.n)
		}
		return h.Own + others
	}
}
