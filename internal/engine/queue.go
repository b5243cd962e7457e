package engine

import (
	"context"
	"math"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/fifo"
	"github.com/ginlimit/ginlimit/internal/rules"
)

const (
	// slotPause is after how long a caller that waits for a slot looks again: another process may
	// have released one.
	slotPause = 100 * time.Millisecond
	// maxLooks is how often a second an engine looks for slots of all clients together. If many
	// callers wait, each looks more seldom.
	maxLooks = 500
)

// Queue bounds how many requests of a client wait in this process, and for how long.
type Queue struct {
	Length int
	Wait   time.Duration
}

// TakeQueued is [Engine.Take], but a request that is denied waits for what it lacks, tokens or a
// slot. The client is that of one of the Asks.
//
// A request waits in the line of the key that lacks something. Only the first of a line tries; the
// others follow in order of arrival. Whoever lacks something of another key then changes to its line.
func (e *Engine) TakeQueued(ctx context.Context, n int64, asks []Ask, answers []Answer, client int, q Queue) error {
	ends := time.Now().Add(q.Wait)
	r := queued{e: e, n: n, asks: asks, answers: answers, client: client, until: ends}
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(ends) {
		r.until = deadline
	}
	if !r.mayWait() {
		return e.Take(ctx, n, asks, answers)
	}
	r.begin()
	at, busy := r.busyLine()
	if !busy {
		err := r.try(ctx)
		lacks, waits := r.lacks()
		if err != nil || !waits {
			return r.deny(ctx, err)
		}
		at = lacks
	}
	if r.expected(at).After(r.until) {
		return r.denyBehind(ctx, at)
	}
	place := string(e.key(&asks[client]))
	if !e.places.Take(place, q.Length) {
		return r.denyBehind(ctx, at)
	}
	defer e.places.Leave(place)
	within, cancel := context.WithDeadline(ctx, ends)
	defer cancel()
	return r.wait(ctx, within, at, busy)
}

// queued is a request that may wait.
type queued struct {
	e       *Engine
	n       int64
	asks    []Ask
	answers []Answer
	client  int
	until   time.Time     // it waits no longer; its context may end by itself then
	bans    []bucket.Bans // of the Asks
}

// lack is what a request lacks: a slot or tokens of one Ask.
type lack struct {
	ask  int
	line fifo.Name
	slot bool
	at   time.Time // when there are tokens, if nobody else takes them; zero if that is not known
}

// mayWait reports whether waiting may help.
func (r *queued) mayWait() bool {
	counted := false
	for i := range r.asks {
		ask := &r.asks[i]
		verdict, static := ask.Set.Static(ask.Scope, r.n)
		if static && !verdict.Allowed || r.n > ask.Set.Burst() {
			return false
		}
		counted = counted || !static
	}
	return r.n > 0 && counted
}

// begin keeps which denials ban the client: a try is no denial.
func (r *queued) begin() {
	for i := range r.asks {
		r.bans = append(r.bans, r.asks[i].Bans)
		r.asks[i].Bans, r.asks[i].Waits = bucket.NoBans, true
	}
}

func (r *queued) try(ctx context.Context) error {
	for i := range r.asks {
		r.asks[i].Set = r.asks[i].Set.Now() // a calendar period may be over
	}
	return r.e.Take(ctx, r.n, r.asks, r.answers)
}

// tokens and slots return what a request lacks of an Ask.
func (r *queued) tokens(i int) lack { return lack{ask: i, line: r.e.queueOf(&r.asks[i])} }

func (r *queued) slots(i int) lack {
	return lack{ask: i, line: slotQueue(r.e.key(&r.asks[i])), slot: true}
}

// busyLine returns the first line of the Asks in which others wait.
func (r *queued) busyLine() (lack, bool) {
	for i := range r.asks {
		if r.e.waiting.Empty() {
			break
		}
		if r.asks[i].attempts() {
			if l := r.slots(i); r.e.waiting.Len(l.line) > 0 {
				return l, true
			}
		}
		if r.asks[i].Set.Counts(rules.Limits) {
			if l := r.tokens(i); r.e.waiting.Len(l.line) > 0 {
				return l, true
			}
		}
	}
	return lack{}, false
}

// lacks returns what a denied request lacks for longest. It is false if the request is not denied, or
// waiting does not help.
func (r *queued) lacks() (l lack, waits bool) {
	ask := -1
	for i := range r.answers {
		a := &r.answers[i]
		switch {
		case !a.Decided || a.Allowed:
		case a.RetryAfter < 0 || a.Banned:
			return lack{}, false
		case ask < 0 || a.RetryAfter > r.answers[ask].RetryAfter:
			ask = i
		}
	}
	if ask < 0 {
		return lack{}, false
	}
	if slots := r.asks[ask].Set.Slots(); slots >= 0 && r.answers[ask].Resource == slots {
		return r.slots(ask), true
	}
	l = r.tokens(ask)
	l.at = time.Now().Add(r.answers[ask].RetryAfter)
	return l, true
}

// expected returns when a request that now comes into a line has its tokens, if those before it take
// as many; the zero time if nobody knows.
func (r *queued) expected(l lack) time.Time {
	if l.slot {
		return time.Time{}
	}
	at, before := l.at, r.e.waiting.Len(l.line)
	if before > 0 {
		if first := r.e.waiting.Next(l.line); first.After(at) {
			at = first
		}
	}
	if at.IsZero() {
		at = time.Now()
	}
	return at.Add(time.Duration(before) * r.asks[l.ask].Set.Regain(r.n))
}

// wait waits in lines until the request is allowed or waits no more. If it came into a line behind
// others, it has not tried yet.
func (r *queued) wait(ctx, within context.Context, l lack, behind bool) error {
	e := r.e
	for {
		joined := time.Now()
		leave, wake, err := e.waiting.Join(within, e.closed, l.line, math.MaxInt)
		waited := time.Since(joined)
		r.answers[r.client].Waited += waited
		switch {
		case ctx.Err() != nil:
			if leave != nil {
				leave()
			}
			return ended(ctx)
		case err != nil: // it never had its turn
			return r.denyBehind(ctx, l)
		case leave == nil:
			return errClosed()
		}
		next, moves, err := r.turn(ctx, within, l, wake, behind || l.slot || waited > time.Millisecond)
		leave()
		if !moves {
			return err
		}
		l, behind = next, false
	}
}

// turn is what a request does while it is the first of a line. It moves to the next if it lacks
// something else.
func (r *queued) turn(ctx, within context.Context, l lack, wake <-chan struct{}, now bool) (next lack, moves bool, err error) {
	e := r.e
	if l.slot {
		e.looking.Add(1)
		defer e.looking.Add(-1)
	}
	for ; ; now = true {
		if now {
			err := r.try(ctx)
			lacks, waits := r.lacks()
			switch {
			case err != nil || !waits:
				return lack{}, false, r.deny(ctx, err)
			case lacks.line != l.line:
				if r.expected(lacks).After(r.until) {
					return lack{}, false, r.deny(ctx, nil)
				}
				return lacks, true, nil
			}
			l = lacks
		}
		if !l.slot && l.at.After(r.until) {
			return lack{}, false, r.deny(ctx, nil)
		}
		pause := min(maxSleep, time.Until(l.at))
		if l.slot {
			pause = max(slotPause, time.Duration(e.looking.Load())*time.Second/maxLooks)
			if last := time.Until(r.until.Add(-e.Timeout)); last > 0 {
				pause = min(pause, last) // it looks once more before it leaves
			}
		} else {
			e.waiting.Expect(l.line, l.at)
		}
		err := e.sleep(within, &r.answers[r.client], pause, wake)
		switch {
		case ctx.Err() != nil:
			return lack{}, false, ended(ctx)
		case within.Err() != nil && l.slot:
			return lack{}, false, nil
		case err != nil && within.Err() == nil:
			return lack{}, false, err
		}
	}
}

// deny returns the outcome of a request that waits no more. If it lacks tokens, and a denial for want
// of them bans its client, it is denied once more, which does.
func (r *queued) deny(ctx context.Context, err error) error {
	bans := false
	for i := range r.asks {
		r.asks[i].Bans = r.bans[i]
		bans = bans || r.bans[i] != bucket.NoBans && r.asks[i].bans()
	}
	l, waits := r.lacks()
	if err != nil || !bans || !waits || l.slot {
		return err
	}
	for i := range r.asks {
		if r.asks[i].Bans == bucket.AllBans {
			r.asks[i].Bans = bucket.LimitBans
		}
	}
	return r.try(ctx)
}

// denyBehind denies a request that finds no place in a line, would wait there for too long, or has
// waited there without a turn.
func (r *queued) denyBehind(ctx context.Context, l lack) error {
	ask, answer := &r.asks[l.ask], &r.answers[l.ask]
	if l.slot {
		r.forget()
		r.e.noSlot(ask, answer, clientkey.Hash(r.e.key(ask)))
		return nil
	}
	if answer.Decided && !answer.Allowed && r.e.waiting.Len(l.line) == 0 {
		return r.deny(ctx, nil) // it has tried
	}
	at := r.expected(l)
	r.forget()
	ask.Set = ask.Set.Now()
	if err := r.look(ctx, ask, answer); err != nil {
		return err
	}
	if !answer.Allowed {
		if err := r.deny(ctx, nil); err != nil || answer.Allowed {
			return err
		}
	}
	wait := time.Duration(bucket.CeilDiv(int64(max(1, time.Until(at))), int64(time.Millisecond))) * time.Millisecond
	if answer.Allowed || answer.RetryAfter >= 0 {
		answer.RetryAfter = max(answer.RetryAfter, wait) // those before it take what is there
	}
	answer.Allowed, answer.Granted, answer.Remaining = false, 0, 0
	answer.ResetAfter = max(answer.ResetAfter, answer.RetryAfter)
	return nil
}

// forget forgets what was decided before.
func (r *queued) forget() {
	for i := range r.answers {
		r.answers[i].reset()
	}
}

// look finds what a request that takes nothing would meet.
func (r *queued) look(ctx context.Context, ask *Ask, answer *Answer) error {
	c := r.e.call(takeAll(r.n, ask), ask, ask.Scope)
	known := r.e.isDenied(c, ask)
	if known {
		answer.begin(r.e, ask, c)
		answer.judge(c, c.Op, ask, FromCache)
	}
	if r.e.release(c); known {
		return nil
	}
	return r.e.take(ctx, ctx, bucket.Peek(r.n), r.n, ask, answer)
}
