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

// localStore is a store in this process.
type localStore struct {
	*memory.Store
	slots *inflight.Counts
}

func (s localStore) Do(_ context.Context, c *dispatch.Call) error {
	c.Sent = time.Now()
	if c.Op.Verb != bucket.Take || bucket.At(c.Buckets, bucket.Slots) < 0 {
		s.Store.Do(c.Key, c.Buckets, c.Op, c.States)
	} else {
		one := [...]local{{call: c, buckets: c.Buckets, op: c.Op, states: c.States, inUse: ownSlots}}
		takeLocally(s.Store, s.slots, one[:], true)
	}
	return nil
}

func (localStore) Close() {}

// local is what this process does of a call. Of the call, which may still be on its way, only what its caller has
// set is read.
type local struct {
	call    *dispatch.Call
	buckets []bucket.Bucket
	op      bucket.Op
	states  []bucket.State
	inUse   func(inflight.Holders) int64 // how many slots are
	sent    bool                         // the call may have taken a slot in Redis
	free    bool                         // it denies nothing
}

// ownSlots returns how many slots are in use if no other process has any.
func ownSlots(h inflight.Holders) int64 { return h.Own }

// takeLocally makes all Takes in this process, with a slot of each that has slots, if all are allowed and it
// may; else none. It reports whether all are allowed.
func takeLocally(store *memory.Store, slots *inflight.Counts, all []local, may bool) (allowed bool) {
	var fewParts [4]memory.Part // on the stack
	var fewTries [4]inflight.Try
	parts, tries := fewParts[:0], fewTries[:0]
	for i := range all {
		l := &all[i]
		parts = append(parts, memory.Part{Key: l.call.Key, Buckets: l.buckets, Op: l.op, States: l.states})
		if bucket.At(l.buckets, bucket.Slots) >= 0 {
			tries = append(tries, inflight.Try{Key: l.call.Key, Number: l.call.Attempt.Number, Sent: l.sent})
		}
	}
	slots.TryAll(tries, func() (takes bool) {
		n := 0
		for i := range all {
			if last := bucket.At(all[i].buckets, bucket.Slots); last >= 0 {
				all[i].states[last] = bucket.State{Level: all[i].inUse(tries[n].Of)}
				n++
			}
		}
		store.TakeAll(parts, func() bool {
			allowed = true
			for i := range all {
				allowed = allowed && (all[i].free || all[i].fits())
			}
			takes = allowed && may
			return takes
		})
		return takes
	})
	return allowed
}

// fits reports whether one charge fits the states found.
func (l *local) fits() bool {
	for i := range l.buckets {
		if l.buckets[i].Fits(l.states[i], 1, l.op.N) == 0 {
			return false
		}
	}
	return true
}

// failsClosed reports whether there is no decision if the store has not made it.
func (e *Engine) failsClosed(ctx context.Context, ask *Ask, err error) bool {
	return left(ctx) || e.local == nil || ask.Failure == FailClosed || errors.Is(err, dispatch.ErrClosed)
}

// fallBack decides on a call on which the store has not decided. The call may still be on its way:
// of it, only what its caller has set is read.
func (e *Engine) fallBack(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer, err error) error {
	e.loseLeases(ctx, err)
	answer.Err = err
	if e.failsClosed(ctx, ask, err) {
		return Unavailable(ctx, err)
	}
	e.decideHere([]*member{{ask: ask, answer: answer, call: c, err: err}}, true)
	return nil
}

// decideHere has this process decide on all members as one: the store has not, or is this process. It takes
// nothing unless it may. It reports whether all are allowed.
func (e *Engine) decideHere(members []*member, may bool) (allowed bool) {
	if len(members) == 0 {
		return true
	}
	if slices.ContainsFunc(members, func(m *member) bool { return m.ask.attempts() }) {
		defer e.replica.HoldOthers()()
	}
	store, all := e.local, make([]local, 0, len(members))
	for _, m := range members {
		switch m.answer.Source = FromStore; {
		case e.redis == nil:
			store = e.store.(localStore).Store
			one := m.local(m.ask.Set)
			one.states = m.call.States
			all = append(all, one)
		case m.ask.Failure == FailLocal:
			m.answer.Source = FromLocal
			all = append(all, m.alone(e))
		default:
			m.answer.Source = FromOpen
		}
	}
	sent := time.Now()
	allowed = takeLocally(store, e.slots, all, may)
	for _, m := range members {
		if m.answer.Source == FromOpen {
			m.judgeHere(&local{states: make([]bucket.State, len(m.call.Buckets)), op: m.call.Op}, m.ask.Set, true, sent)
			continue
		}
		m.judgeHere(&all[0], setOf(m), allowed && may, sent)
		all = all[1:]
	}
	return allowed
}

// alone returns what this process does for a member while Redis does not decide: by its share.
func (m *member) alone(e *Engine) local {
	slots := slotsAlone{replicas: e.replicas(), away: errors.Is(m.err, dispatch.ErrOpen)}
	m.answer.share = m.ask.Set.Share(slots.replicas)
	if m.ask.attempts() {
		slots.n, slots.siblings = m.ask.slots(), e.replica.HeldByOthers(m.call.Key)
		if !slots.away && e.slots.Holders(m.call.Key).Age < inflight.Renewal {
			m.answer.share = m.answer.share.WithSlotsOf(m.ask.Set)
		}
	}
	one := m.local(m.answer.share)
	one.sent, one.inUse = mayStillHappen(m.err) && !slots.away, slots.inUse
	return one
}

// setOf returns the rules by which this process decides on a member.
func setOf(m *member) *rules.Set {
	if m.answer.share != nil {
		return m.answer.share
	}
	return m.ask.Set
}

// local returns what this process does for a member by a set.
func (m *member) local(set *rules.Set) local {
	op := m.call.Op
	if op.Charges > 1 {
		op.Charges = min(op.Charges, set.Burst())
	}
	return local{
		call: m.call, buckets: set.Buckets(m.ask.scope), op: op, states: make([]bucket.State, len(m.call.Buckets)),
		free: m.free(), inUse: ownSlots,
	}
}

// judgeHere fills in the answer of a member on which this process has decided.
func (m *member) judgeHere(l *local, set *rules.Set, takes bool, sent time.Time) {
	ask, answer := m.ask, m.answer
	charges, fits := set.Fit(ask.scope, l.states, l.op)
	if !takes {
		charges = 0
	}
	answer.Verdict, answer.Statuses = set.JudgeOf(
		ask.scope, l.states, l.op.N, charges, fits, ask.Report, answer.Statuses[:0])
	answer.Decided = true
	answer.receipt.fill(sent, l.states)
	if answer.RetryAfter == rules.Never && answer.Source == FromLocal && l.op.N <= ask.Set.Burst() {
		answer.RetryAfter = set.RetryAfterPeriods(ask.scope, l.states, l.op.N)
	}
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
