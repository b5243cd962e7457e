package engine

import (
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/fifo"
	"github.com/ginlimit/ginlimit/internal/rules"
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
	// outagePause is the pause before a Wait tries again after Redis did not answer.
	outagePause = 200 * time.Millisecond
	// maxSleep is the longest pause between two tries: another process may have given tokens back.
	maxSleep = 10 * time.Second
	// none is no Ask.
	none = -1
)

// lack is what a request lacks: a slot or tokens of one Ask.
type lack struct {
	ask      int
	line     fifo.Name
	resource int // of the Ask's set
	slot     bool
	at       time.Time // when there are tokens, if nobody else takes them; zero if that is not known
}

// lackOf returns the line of an Ask, for its tokens and its slots.
func (w *waiter) lackOf(i int) lack { return lack{ask: i, line: w.e.lineOf(&w.Asks[i])} }

// busyLine returns the first line of the Asks in which others wait.
func (w *waiter) busyLine() (l lack, busy bool) {
	for i := range w.Asks {
		ask := &w.Asks[i]
		if w.e.waiting.Empty() {
			break
		}
		if !ask.queues() || !ask.Set.Counts(rules.All) || ask.N == 0 {
			continue
		}
		l = w.lackOf(i)
		if line := w.e.waiting.Before(l.line, w.began); line.Callers > 0 {
			l.resource = line.Expects.Resource
			l.slot = l.resource == ask.Set.Slots()
			return l, true
		}
	}
	return lack{}, false
}

// expected returns when a request has its tokens if those before it take theirs; the zero time if nobody
// knows.
func (w *waiter) expected(l lack) time.Time {
	if l.slot {
		return time.Time{}
	}
	ask, at := &w.Asks[l.ask], l.at
	line := w.e.waiting.Before(l.line, w.began)
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

// wait waits in lines until the request is allowed or waits no more. If it came into a line behind others,
// it has not tried yet.
func (w *waiter) wait(l lack, behind bool) error {
	for {
		switch may := w.enter(l); {
		case !may && behind:
			return w.denyBehind(l)
		case !may:
			return w.deny(l)
		case behind || w.undecided():
			behind = true // it has not tried since
			asks := len(w.Asks) > 1 || w.Asks[0].attempts() || w.Asks[0].Set.Bans()
			if done, err := w.look(l, asks, true); done {
				return err
			}
		}
		next, moves, err := w.waitIn(l, behind)
		if !moves {
			return err
		}
		l, behind = next, false
	}
}

// undecided reports whether the last try did not get to an Ask that denies at once.
func (w *waiter) undecided() bool {
	for i := range w.Asks {
		if !w.Asks[i].queues() && !w.Answers[i].Decided {
			return true
		}
	}
	return false
}

// waitIn waits in one line. If it came there behind others, or others go before it, it has not tried since.
func (w *waiter) waitIn(l lack, behind bool) (next lack, moves bool, err error) {
	turn := w.e.waiting.Join(l.line, fifo.Caller{
		Since: w.began, Wants: w.Asks[l.ask].N, Expects: fifo.Expectation{At: l.at, Resource: l.resource},
	})
	if w.Waits != nil {
		w.Waits()
	}
	if !turn.AtOnce {
		woken, err := w.sleep(l, time.Until(w.leaves), turn.Wake)
		if !woken {
			turn.Leave() // it is told of those before it, and not of itself
			if err == nil {
				err = w.denyBehind(l)
			}
			return lack{}, false, err
		}
	}
	defer turn.Leave()
	// What a change gave back before the request was in the line has woken nobody.
	return w.inTurn(l, turn, behind || !turn.AtOnce || w.changes != w.e.changes.Load())
}

// inTurn is what a request does while it is the first of a line. It moves to the next if it lacks something
// else.
func (w *waiter) inTurn(l lack, turn *fifo.Turn, now bool) (next lack, moves bool, err error) {
	for ; ; now = true {
		if now {
			lacks, waits, err := w.try()
			switch {
			case err != nil || !waits:
				return lack{}, false, err
			case lacks.line != l.line:
				return lacks, true, nil
			}
			l = lacks
		}
		if over := l.at.IsZero() && !l.slot && !time.Now().Before(w.leaves); over || l.at.After(w.until(w.leaves)) {
			return lack{}, false, w.deny(l)
		}
		turn.Expect(fifo.Expectation{At: l.at, Resource: l.resource})
		if over, err := w.pause(l, turn.Wake); over || err != nil {
			return lack{}, false, err
		}
	}
}

// pause pauses before another try of what a request lacks. It is over if the request waits no longer.
func (w *waiter) pause(l lack, wake <-chan struct{}) (over bool, err error) {
	e, d := w.e, min(maxSleep, time.Until(l.at))
	switch {
	case l.slot:
		e.looking.Add(1)
		defer e.looking.Add(-1)
		d = slotPause
		if place := w.Answers[l.ask].place; 0 < place && place < int64(slotPause/turnPause) {
			d = time.Duration(place) * turnPause
		}
		d = max(d, time.Duration(e.looking.Load())*time.Second/maxLooks)
		w.Asks[l.ask].turn = e.turn(d)
		if last := time.Until(w.until(w.leaves).Add(-e.Timeout)); last > 0 {
			d = min(d, last) // it looks once more before it leaves
		}
		d = min(d, time.Until(w.leaves))
	case l.at.IsZero():
		d = outagePause
	}
	if _, err := w.sleep(l, d, wake); err != nil {
		return false, err
	}
	return l.slot && time.Until(w.leaves) <= 0, nil
}

// sleep returns after a time, at the end of the request's calls, or when it is woken. The error is that its caller
// has left, or that the engine ended.
func (w *waiter) sleep(l lack, d time.Duration, wake <-chan struct{}) (woken bool, err error) {
	timer, start := time.NewTimer(d), time.Now()
	defer func() {
		timer.Stop()
		w.Answers[l.ask].Waited += time.Since(start)
	}()
	select {
	case <-timer.C:
	case <-wake:
		woken = true
	case <-w.ctx.Done():
		if left(w.ctx) {
			err = ended(w.ctx)
		}
	case <-w.e.closed:
		err = errClosed()
	}
	return woken, err
}

// turn returns for how long a process is known to wait for a slot if it looks again after a pause.
func (e *Engine) turn(pause time.Duration) time.Duration {
	return 2*max(pause, slotPause) + min(e.Timeout, slotPause)
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
