package engine

import (
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/fifo"
)

const (
	// slotPause is after how long a caller that waits for a slot looks again: another process may
	// have released one.
	slotPause = 100 * time.Millisecond
	// turnPause is the same for the process whose turn it is, and for each place after it.
	turnPause = 20 * time.Millisecond
	// maxLooks is how often a second an engine looks for slots of all clients together. If many
	// callers wait, each looks more seldom.
	maxLooks = 500
	// maxLine is how many requests of all clients wait for one key.
	maxLine = 1 << 14
)

// Queue bounds how many requests of a client wait in this process, and for how long.
type Queue struct {
	Length int
	Wait   time.Duration
}

// TakeQueued is [Engine.Take], but a request that is denied waits for what it lacks, tokens or a
// slot. client is the index of the Ask for the policy's own key.
//
// A request waits in the line of the key that lacks something. Only the first of a line tries; the
// others follow in order of arrival. Whoever lacks something of another key then changes to its line.
func (e *Engine) TakeQueued(ctx context.Context, n int64, asks []Ask, answers []Answer, client int, q Queue) error {
	began := time.Now()
	ends := began.Add(q.Wait)
	r := queued{e: e, n: n, asks: asks, answers: answers, client: client, began: began, until: ends}
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
	who, _ := subject(e.key(&asks[client]), asks[client].Tenant)
	place := string(who)
	if !e.places.Take(place, q.Length) {
		return r.denyBehind(ctx, at)
	}
	defer e.places.Leave(place)
	if busy {
		if done, err := r.lookBehind(ctx); done {
			return err
		}
	}
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
	began   time.Time     // in a line it stands before those that came later
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
		r.asks[i].Bans, r.asks[i].Waits, r.asks[i].turn = bucket.NoBans, true, r.e.turn(slotPause)
	}
}

func (r *queued) try(ctx context.Context) error {
	for i := range r.asks {
		r.asks[i].Set = r.asks[i].Set.Now() // a calendar period may be over
	}
	err := r.e.Take(ctx, r.n, r.asks, r.answers)
	for i := range r.asks {
		r.asks[i].again = true
	}
	return err
}

// of returns the line of an Ask, for its tokens and its slots.
func (r *queued) of(i int) lack { return lack{ask: i, line: r.e.lineOf(&r.asks[i])} }

// busyLine returns the first line of the Asks in which others wait.
func (r *queued) busyLine() (lack, bool) {
	for i := range r.asks {
		if r.e.waiting.Empty() {
			break
		}
		if l := r.of(i); r.asks[i].Set.Counts(r.asks[i].Scope) && r.e.waiting.Len(l.line) > 0 {
			l.slot = r.asks[i].attempts() && r.e.waiting.Next(l.line).IsZero()
			return l, true
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
	l = r.of(ask)
	if slots := r.asks[ask].Set.Slots(); slots >= 0 && r.answers[ask].Resource == slots {
		l.slot = true
		return l, true
	}
	l.at = time.Now().Add(r.answers[ask].RetryAfter)
	return l, true
}

// expected returns when a request that now comes into a line has its tokens, if those before it take
// theirs; the zero time if nobody knows.
func (r *queued) expected(l lack) time.Time {
	if l.slot {
		return time.Time{}
	}
	at := l.at
	before, tokens := r.e.waiting.Before(l.line, r.began)
	if before > 0 {
		if first := r.e.waiting.Next(l.line); first.After(at) {
			at = first
		}
	}
	if at.IsZero() {
		at = time.Now()
	}
	return at.Add(r.asks[l.ask].Set.Regain(tokens, r.n))
}

// wait waits in lines until the request is allowed or waits no more. If it came into a line behind
// others, it has not tried yet.
func (r *queued) wait(ctx, within context.Context, l lack, behind bool) error {
	for {
		next, moves, err := r.waitIn(ctx, within, l, behind)
		if !moves {
			return err
		}
		l, behind = next, false
	}
}

// waitIn waits in one line.
func (r *queued) waitIn(ctx, within context.Context, l lack, behind bool) (next lack, moves bool, err error) {
	e, joined := r.e, time.Now()
	leave, wake, err := e.waiting.JoinAt(within, e.closed, l.line, maxLine, r.began, r.n)
	if leave != nil {
		defer leave()
	}
	waited := time.Since(joined)
	r.answers[r.client].Waited += waited
	switch {
	case ctx.Err() != nil:
		return lack{}, false, ended(ctx)
	case err != nil: // it found no place, or never had its turn
		return lack{}, false, r.denyBehind(ctx, l)
	case leave == nil:
		return lack{}, false, errClosed()
	}
	return r.turn(ctx, within, l, wake, behind || l.slot || waited > time.Millisecond)
}

// turn is what a request does while it is the first of a line. It moves to the next if it lacks
// something else.
func (r *queued) turn(ctx, within context.Context, l lack, wake <-chan struct{}, now bool) (next lack, moves bool,
	err error) {
	e := r.e
	for ; ; now = true {
		if now {
			err := r.try(ctx)
			lacks, waits := r.lacks()
			switch {
			case err != nil || !waits:
				return lack{}, false, r.deny(ctx, err)
			case lacks.line != l.line:
				if r.expected(lacks).After(r.until) {
					return lack{}, false, r.denyBehind(ctx, lacks)
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
			e.looking.Add(1)
			pause = slotPause
			if place := r.answers[l.ask].place; 0 < place && place < int64(slotPause/turnPause) {
				pause = time.Duration(place) * turnPause
			}
			pause = max(pause, time.Duration(e.looking.Load())*time.Second/maxLooks)
			r.asks[l.ask].turn = e.turn(pause)
			if last := time.Until(r.until.Add(-e.Timeout)); last > 0 {
				pause = min(pause, last) // it looks once more before it leaves
			}
		}
		e.waiting.Expect(l.line, l.at)
		err := e.sleep(within, &r.answers[r.client], pause, wake)
		if l.slot {
			e.looking.Add(-1)
		}
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

// turn returns for how long a process is known to wait for a slot if it looks again after a pause.
func (e *Engine) turn(pause time.Duration) time.Duration {
	return 2*max(pause, slotPause) + min(e.Timeout, slotPause)
}
