package ginlimit

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/fifo"
	"github.com/ginlimit/ginlimit/internal/httpfields"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/memory"
)

// slotRetry is when a client is told to try again that finds no slot, as nobody knows when a request ends.
const slotRetry = bucket.SlotRetry * time.Millisecond

const (
	// slotPause is after how long a caller that waits for a slot looks again: another process may have released one.
	slotPause = 100 * time.Millisecond
	// maxLooks is how often a second a limiter looks for slots of all clients together. If many wait, each looks more seldom.
	maxLooks = 500
)

// Slot is one of the slots of [WithConcurrency], or a refusal.
type Slot struct {
	limiter  *Limiter
	key      []byte
	attempt  int64 // that has taken it; 0 is none
	result   Result
	released atomic.Bool
}

// Acquire takes a slot of a client and one token of each limit, or nothing. The policy has [WithConcurrency].
//
// If [Slot.Result] allows it, do the work and call Release. A refusal comes with a Slot that holds nothing, an error
// without one; errors are those of [Limiter.Allow]. With [WithQueue] it waits for a slot. A policy without WithConcurrency has a slot
// for everybody.
func (p *Policy) Acquire(ctx context.Context, client string) (*Slot, error) {
	s, o, err := p.begin(ctx, client, 1)
	if err != nil {
		return nil, err
	}
	res, _, err := p.acquire(ctx, s, 1)
	slot, kept := p.limiter.slotOf(s, res), false
	defer func() { // an observer may panic
		if !kept {
			slot.Release()
		}
	}()
	if err = o.end(ctx, p.limiter, s, 1, res, err); err != nil {
		return nil, err
	}
	kept = true
	return slot, nil
}

// Result returns the decision; that of a nil Slot is zero.
func (s *Slot) Result() Result {
	if s == nil {
		return Result{}
	}
	return s.result
}

// Release gives the slot back, without waiting for Redis. More than once is once.
func (s *Slot) Release() {
	if s != nil && s.attempt > 0 && !s.released.Swap(true) {
		s.limiter.releaseSlot(s.key, s.attempt)
	}
}

// slotOf returns the slot that a subject has taken, if any.
func (l *Limiter) slotOf(s *subject, res Result) *Slot {
	slot := &Slot{limiter: l, attempt: s.slot, result: res}
	if s.slot > 0 {
		slot.key = l.keys.Append(nil, s.keyName, s.client)
	}
	return slot
}

func (l *Limiter) releaseSlot(key []byte, attempt int64) {
	l.slots.Release(key, attempt)
	if !l.waiting.Empty() {
		l.waiting.WakeOne(slotQueue(key))
	}
}

// slotQueue names the queue of those who wait for a slot of a key. No key has a line break, so those who wait for tokens have others.
func slotQueue(key []byte) fifo.Name { return fifo.Name{Key: "slots\n" + string(key)} }

// acquire decides on a slot and n tokens. If there is no slot, it waits for one as long as [WithQueue] says.
//
// Of the callers in this process that wait for a slot of a client, only the first tries; the others follow in order of arrival.
func (p *Policy) acquire(ctx context.Context, s *subject, n int) (res Result, hash uint64, err error) {
	l := p.limiter
	if p.trial != nil {
		return p.acquireTrial(ctx, s, n)
	}
	if s.acquires = true; p.queue == 0 {
		return l.allow(ctx, s, n)
	}
	s.bans = bucket.LimitBans // a caller that waits is not refused yet
	under := s.guarded().limits
	if _, static := under.static(n); n == 0 || static || int64(n) > under.burst() { // no slot would change the answer
		return l.allow(ctx, s, n)
	}
	start, key := time.Now(), l.keys.Append(nil, s.keyName, s.client)
	queue := slotQueue(key)
	if l.waiting.Len(queue) == 0 {
		if res, hash, err = l.allow(ctx, s, n); err != nil || !p.lacksSlot(res) {
			return res, hash, err
		}
	}
	within, cancel := context.WithDeadline(ctx, start.Add(p.queueWait))
	defer cancel()
	tried := time.Now()
	leave, wake, err := l.waiting.Join(within, l.closed, queue, p.queue)
	s.waited += time.Since(tried)
	switch {
	case ctx.Err() != nil:
		if leave != nil {
			leave()
		}
		return Result{}, hash, ended(ctx)
	case err != nil: // it never had its turn
		return p.noSlot(s, clientkey.Hash(key)), hash, nil
	case leave == nil:
		return Result{}, hash, errClosed()
	}
	defer leave()
	l.looking.Add(1)
	defer l.looking.Add(-1)
	for {
		s.retry()
		if res, hash, err = l.allow(ctx, s, n); err != nil || !p.lacksSlot(res) {
			return res, hash, err
		}
		pause := max(slotPause, time.Duration(l.looking.Load())*time.Second/maxLooks)
		if last := time.Until(start.Add(p.queueWait - l.defaults.timeout)); last > 0 {
			pause = min(pause, last) // it looks once more before it leaves
		}
		err := s.sleep(within, l, pause, wake)
		switch {
		case ctx.Err() != nil:
			return Result{}, hash, ended(ctx)
		case within.Err() != nil:
			return res, hash, nil
		case err != nil:
			return Result{}, hash, err
		}
	}
}

// retry has a subject be decided on once more.
func (s *subject) retry() {
	s.limits = s.limits.now() // a calendar period may be over
	if s.status != nil {
		s.status.limits = s.status.limits[:0]
	}
}

// lacksSlot reports whether a client is refused for want of a slot.
func (p *Policy) lacksSlot(res Result) bool {
	return !res.Allowed && res.Name == p.name+slotsSuffix && res.RetryAfter == slotRetry
}

// noSlot is the refusal of a client that finds no room to wait for a slot, or never had its turn. If it is known to be banned, it is told
// of that.
func (p *Policy) noSlot(s *subject, hash uint64) Result {
	wait := max(slotRetry, p.limiter.bans.left(hash))
	if s.retry(); s.status != nil && s.limits.guards != nil {
		s.status.limits = append(s.status.limits, limitStatus{s.limits.guards.policy, httpfields.Status{
			More: httpfields.Seconds(wait), Denies: true,
		}})
	}
	source := FromMemory
	if p.limiter.source == FromLocal {
		source = FromLocal
	}
	return Result{Limit: Limit{InFlight: p.slots}, Name: p.name + slotsSuffix, RetryAfter: wait, ResetAfter: wait, Source: source}
}

// attempt numbers a call's attempt to take a slot. The function returned ends it, unless that is done before: a hook of the client may
// panic.
func (l *Limiter) attempt(c *dispatch.Call, s *subject) (end func()) {
	g := s.limits.guards
	if g == nil {
		return func() {}
	}
	if g.ban != nil {
		c.Op.Bans = s.bans
	}
	switch {
	case !s.acquires || g.slots == nil:
		return func() {}
	case c.Op.Charges == 0:
		c.Attempt = l.slots.Look(c.Key)
		return func() {}
	}
	c.Attempt = l.slots.Begin(c.Key)
	key, number := bytes.Clone(c.Key), c.Attempt.Number
	return func() { l.slots.Settle(key, number, inflight.Lost) }
}

// settleAttempt notes whether the attempt of a call holds a slot, and for how long a client that is refused is banned.
func (l *Limiter) settleAttempt(c *dispatch.Call, s *subject, res Result, err error) {
	if s.limits.taking != nil && err == nil && !res.Allowed && res.Source == l.source {
		l.bans.note(c.Hash, s.limits.taking.banned(c.States))
	}
	if c.Attempt.Number == 0 {
		return
	}
	outcome := inflight.Refused
	switch {
	case err != nil:
		outcome = inflight.Lost
	case res.Granted > 0:
		if s.slot = c.Attempt.Number; res.Source == FromLocal {
			outcome = inflight.Local
		} else {
			outcome = inflight.Granted
		}
	}
	l.slots.Settle(c.Key, c.Attempt.Number, outcome)
}

// doHere has an Op done in this process. If there are slots, it takes one too. What was sent may have taken one in Redis.
func doHere(store *memory.Store, slots *inflight.Counts, c *dispatch.Call, buckets []bucket.Bucket, op bucket.Op, states []bucket.State, sent bool) {
	last := len(buckets) - 1
	if last < 0 || buckets[last].Kind != bucket.Slots {
		store.Do(c.Key, buckets, op, states)
		return
	}
	if c.Attempt.Number == 0 {
		states[last] = bucket.State{Level: slots.Held(c.Key)}
		store.Do(c.Key, buckets, op, states)
		return
	}
	slots.Try(c.Key, c.Attempt.Number, sent, func(held int64) bool {
		states[last] = bucket.State{Level: held}
		store.Do(c.Key, buckets, op, states)
		for i := range buckets {
			if buckets[i].Fit(states[i].Level, 1, op.N) == 0 {
				return false
			}
		}
		return true
	})
}

// closeSlots tells Redis of the slots that were released.
func (l *Limiter) closeSlots() {
	ctx, cancel := context.WithTimeout(context.Background(), l.defaults.timeout)
	defer cancel()
	l.slots.Close(ctx)
}
