package engine

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/fifo"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// ErrLeft is the error of a request that left its line, as its Leaves wanted.
var ErrLeft = errors.New("ginlimit: the request left its line")

// forever is longer than any context lasts.
const forever time.Duration = 1 << 62

// wait returns for how long a request waits in the queue.
func (q Queue) wait() time.Duration {
	if q.Length == Endless && q.Wait == 0 {
		return forever
	}
	return q.Wait
}

// waiter is a request that may wait. It waits in the line of the Ask that lacks something. Only the first of
// a line tries; the others follow in order of arrival. Whoever lacks something of another Ask then changes
// to its line.
type waiter struct {
	Request
	e       *Engine
	ctx     context.Context // ends a timeout after the longest wait at the latest
	endless bool
	ends    time.Time // it waits no longer, in whatever line
	leaves  time.Time // it waits no longer in its line
	changes uint64    // of the engine, before the last try
	tried   time.Time // when the last try or look began
	place   string    // that it has in its line; "" is none
	full    bool      // its line has no place
}

// enter has the request wait for what it lacks, in no other line. It reports whether it may: there is a
// place, and what it lacks comes in time.
func (w *waiter) enter(l lack) bool {
	w.leave()
	w.leaves, w.full = w.end(l.ask), false
	switch {
	case w.expected(l).After(w.until(w.leaves)):
		return false
	case w.endless:
		return true
	}
	ask := &w.Asks[l.ask]
	who := whoOf(w.e.key(&ask.Subject), ask.Tenant)
	if w.full = !w.e.places.Take(string(who), ask.Queue.Length); !w.full {
		w.place = string(who)
	}
	return !w.full
}

// leave gives the place in a line back.
func (w *waiter) leave() {
	if w.place != "" {
		w.e.places.Leave(w.place)
		w.place = ""
	}
}

// end returns until when a request waits that begins to wait for what it lacks of an Ask.
func (w *waiter) end(ask int) time.Time {
	if own := time.Now().Add(w.Asks[ask].Queue.wait()); own.Before(w.ends) {
		return own
	}
	return w.ends
}

// until returns by when a request that waits to an end needs what it lacks: its context may end before.
func (w *waiter) until(end time.Time) time.Time {
	if deadline, ok := w.ctx.Deadline(); ok && deadline.Before(end) {
		return deadline
	}
	return end
}

// lacks returns what a denied request lacks for longest: tokens that come too late for it, if there are. It is false
// if the request is not denied, waiting does not help, or an Ask that denies it has no queue.
func (w *waiter) lacks() (l lack, waits bool) {
	at, late := none, false
	for i := range w.Answers {
		a := &w.Answers[i]
		switch tooLate := w.tooLate(i); {
		case !a.Decided || a.Allowed || a.RetryAfter == 0: // another Ask is denied
		case a.RetryAfter == rules.Never || a.Banned && !w.endless || !w.Asks[i].queues():
			return lack{}, false
		case at == none || tooLate && !late || tooLate == late && a.RetryAfter > w.Answers[at].RetryAfter:
			at, late = i, tooLate
		}
	}
	if at == none {
		return lack{}, false
	}
	return w.lackAt(at), true
}

// lackAt returns what a request lacks of an Ask that denies it: a slot, unless tokens come too late.
func (w *waiter) lackAt(i int) lack {
	l, answer := w.lackOf(i), &w.Answers[i]
	wait := answer.RetryAfter
	if l.resource = answer.Resource; l.resource == w.Asks[i].Set.Slots() && !answer.Banned {
		if l.slot = !w.tooLate(i); l.slot {
			return l
		}
		wait = answer.TokensAfter
	}
	l.at = time.Now().Add(wait)
	return l
}

// lack is what a request lacks: a slot or tokens of one Ask.
type lack struct {
	ask      int
	line     fifo.Name
	resource int // of the Ask's set
	slot     bool
	at       time.Time // when there are tokens, if nobody else takes them; zero if that is not known
}

// none is no Ask.
const none = -1

// lackOf returns the line of an Ask, for its tokens and its slots.
func (w *waiter) lackOf(i int) lack { return lack{ask: i, line: w.e.lineOf(&w.Asks[i])} }

// tooLate reports whether an Ask with a queue denies for want of tokens that come later than the request waits.
func (w *waiter) tooLate(i int) bool {
	ask, answer := &w.Asks[i], &w.Answers[i]
	wait := answer.RetryAfter
	if answer.Resource == ask.Set.Slots() {
		wait = answer.TokensAfter
	}
	return !w.endless && ask.queues() && denies(*answer) && wait > 0 && wait != rules.Never &&
		time.Now().Add(wait).After(w.until(w.end(i)))
}

// expected returns when a request has its tokens if those before it take theirs; the zero time if nobody
// knows.
func (w *waiter) expected(l lack) time.Time {
	if l.slot {
		return time.Time{}
	}
	ask, at := &w.Asks[l.ask], l.at
	line := w.e.waiting.Before(l.line, w.Since)
	ahead := line.Wants
	if first := line.Expects.At; line.Callers > 0 && first.After(at) {
		at, ahead = first, line.Wants-line.First+ask.N
	}
	if at.IsZero() {
		return at
	}
	return at.Add(ask.Set.Regain(ahead, line.Wants, ask.N))
}

// retryAfter returns for how long a request that does not wait is denied.
func (w *waiter) retryAfter(l lack) time.Duration {
	at := w.expected(l)
	if at.IsZero() {
		return slotRetry
	}
	wait := min(max(1, time.Until(at)), rules.Longest)
	return time.Duration(bucket.CeilDiv(int64(wait), int64(time.Millisecond))) * time.Millisecond
}

// lineOf names the queue of the requests that wait for what an Ask lacks: of the same buckets and tenant,
// down to the same floor, under the same ban, and with the same answer to an outage. Those that want slots
// have another than those that want only its tokens, and than those that may hold more slots.
func (e *Engine) lineOf(ask *Ask) fifo.Name {
	text := strconv.AppendUint(nil, uint64(ask.Failure), 10)
	text = append(text, ask.Tenant.Name...)
	buckets := ask.Set.Buckets(rules.Tokens)
	for i := range buckets {
		b := &buckets[i]
		id := b.ID
		if b.Ends != 0 { // callers of several periods keep their order
			id = id[:strings.LastIndexByte(id, ':')]
		}
		text = strconv.AppendQuote(append(text, ' '), id)
		for _, n := range [...]int64{b.Cost, b.Drain, b.Capacity} {
			text = strconv.AppendInt(append(text, ' '), n, 10)
		}
	}
	name := fifo.Name{Key: string(e.key(&ask.Subject)), Of: string(text)}
	if ask.attempts() {
		name.Key, name.Of = slotsOf([]byte(name.Key)), strconv.FormatInt(ask.slots(), 10)+" "+name.Of
	}
	return name
}
