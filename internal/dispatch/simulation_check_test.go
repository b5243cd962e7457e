package dispatch

import (
	"fmt"
	"slices"
	"time"
)

// shadow is what a dispatcher's breaker is to be by its table. It counts failures by itself.
type shadow struct {
	state    breakerState
	failures int // in a row, while closed
	last     time.Time
	healthy  bool
	closed   bool // Close has begun: failures count no more
}

// failed is one row of the table. Failures of one cause count once: those of calls sent before
// another one was noticed, and those within 25 ms after it, or half a timeout.
func (w shadow) failed(p *process, sentAt, now time.Time) shadow {
	w.healthy = false
	gap := min(25*time.Millisecond, p.timeout/2)
	if w.closed || w.state == open || !sentAt.After(w.last) || now.Sub(w.last) < gap {
		return w
	}
	w.failures, w.last = w.failures+1, now
	if w.state == halfOpen || w.failures == 3 {
		w.state = open
	}
	return w
}

func (w shadow) answered() shadow {
	w.healthy = true
	if w.state != open {
		w.state, w.failures = closed, 0
	}
	return w
}

func (w shadow) found() shadow {
	if w.state == open {
		w.state, w.failures, w.last = halfOpen, 0, time.Time{}
	}
	return w
}

// same reports whether two are the same to those who can see them.
func (w shadow) same(other shadow) bool {
	if w.state != closed {
		w.failures, other.failures = 0, 0
	}
	return w.state == other.state && w.failures == other.failures && w.last.Equal(other.last) &&
		w.healthy == other.healthy
}

func (w shadow) String() string {
	return fmt.Sprintf("%s, %d failures, healthy %t", w.state, w.failures, w.healthy)
}

// instant is what has happened at one instant. Nobody knows in which order.
type instant struct {
	p       *process
	now     time.Time
	landed  []*simFlight // with those that were overdue
	late    []*simFlight // in flight for the timeout or longer, without a slot for it
	actual  shadow
	overdue map[*simFlight]bool // at the end
	max     int                 // overdue ones that there may be
}

// explained reports whether the table leads to what is, by the bound of overdue ones from before or
// by that of now: what has landed may have changed it.
func (in *instant) explained(w shadow, overdue int, found bool) bool {
	for _, in.max = range []int{in.p.maxOverdue, in.p.d.slots.limit() + 2} {
		if in.explains(w, 0, 0, overdue, found) {
			return true
		}
	}
	return false
}

// explains reports whether there is an order in which the table leads to what is. Landed and
// expired are those that have done so already, as bits.
func (in *instant) explains(w shadow, landed, expired uint, overdue int, found bool) bool {
	if landed == 1<<len(in.landed)-1 && !found && w.same(in.actual) {
		agrees := true
		for i, f := range in.late {
			if !slices.Contains(in.landed, f) && in.overdue[f] != (expired&(1<<i) != 0) {
				agrees = false
			}
		}
		if agrees {
			return true
		}
	}
	for i, f := range in.landed {
		if landed&(1<<i) != 0 {
			continue
		}
		next, left := w, overdue
		switch at := slices.Index(in.late, f); {
		case f.overdue || at >= 0 && expired&(1<<at) != 0: // it has counted
			left--
		case f.err != nil || in.now.Sub(f.sentAt) >= in.p.timeout:
			next = w.failed(in.p, f.sentAt, in.now)
		default:
			next = w.answered()
		}
		if in.explains(next, landed|1<<i, expired, left, found) {
			return true
		}
	}
	if found && in.explains(w.found(), landed, expired, overdue, false) {
		return true
	}
	if !in.p.mayExpire {
		return false
	}
	// Somebody leaves, and so those that are late become overdue, as many as may. Either of two may
	// be first.
	for _, backward := range []bool{false, true} {
		next, count, sentAt := expired, overdue, time.Time{}
		for i := range in.late {
			if backward {
				i = len(in.late) - 1 - i
			}
			f := in.late[i]
			if at := slices.Index(in.landed, f); expired&(1<<i) != 0 || at >= 0 && landed&(1<<at) != 0 {
				continue
			}
			if count < in.max {
				count++
				next |= 1 << i
				if f.sentAt.After(sentAt) {
					sentAt = f.sentAt
				}
			} else {
				sentAt = in.now
			}
		}
		if sentAt.IsZero() {
			return false
		}
		after := w.failed(in.p, sentAt, in.now)
		if (next != expired || after != w) && in.explains(after, landed, next, count, found) {
			return true
		}
	}
	return false
}

// checkLocked looks at a dispatcher while nothing runs.
func (p *process) checkLocked() {
	s, d, now := p.s, p.d, time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	was, is := p.seen, shadow{d.breaker.state, d.breaker.failures, d.breaker.last, d.slots.healthy, d.life.closed}

	in := &instant{p: p, now: now, landed: p.landed, actual: is, overdue: map[*simFlight]bool{}}
	overdue, live := 0, 0
	for _, f := range slices.Concat(p.flights, p.landed) {
		if f.overdue {
			overdue++
		} else if now.Sub(f.sentAt) >= p.timeout {
			in.late = append(in.late, f)
		}
	}
	held := 0
	for _, f := range p.flights {
		in.overdue[f] = f.b.overdue
		if f.overdue && !f.b.overdue {
			s.faultLocked("a batch is overdue no more")
		}
		for _, o := range f.ops {
			if !o.ended && !o.silent {
				held++
			}
		}
		if !f.b.overdue && p.mustExpire && len(p.landed) == 0 && now.Sub(f.sentAt) >= p.timeout &&
			d.slots.overdue < d.slots.limit()+2 {
			s.faultLocked("the batch from op %d on is late and has its slot", f.ops[0].id)
		}
	}
	if is.closed == was.closed && len(in.landed) <= 5 &&
		!in.explained(was, overdue, p.answered && was.state == open && !is.closed) {
		s.faultLocked("the breaker was %s and is %s after %d batches, %d late ones, a probe answered: %t",
			was, is, len(in.landed), len(in.late), p.answered)
	}
	switch opened := is.state == open && (was.state != open || !is.last.Equal(was.last)); {
	case opened:
		p.openedAt = now
		s.traceLocked(p, "the breaker is open")
	case p.flushed:
		s.faultLocked("queued calls fail as if the breaker were open")
	case p.saidOpen && was.state != open && is.state != open:
		s.faultLocked("a call fails as if the breaker were open")
	case is.state != was.state:
		s.traceLocked(p, "the breaker is %s", is)
	}
	if is.state == open && !d.probing {
		s.faultLocked("the breaker is open and nobody probes")
	}
	since := now.Sub(p.wellSinceLocked())
	if is.state == open && !is.closed && p.hanging == 0 && since > p.foundWithin() {
		s.faultLocked("the server is not found after %s", since)
	}
	if is.state == open && d.probing && p.probing && !is.closed && p.probes == 0 {
		if since := now.Sub(later(p.probedAt, later(p.openedAt, p.proberSince))); since > 10*time.Second {
			s.faultLocked("no probe is sent for %s", since)
		}
	}

	gone := 0
	for _, c := range d.queue.calls {
		switch c.progress {
		case queued:
			live++
			if o := s.ops[c]; o != nil && !o.silent {
				held++
				if o.ended {
					s.faultLocked("op %d is queued, its caller has left", o.id)
				}
			}
		case left:
			gone++
		default:
			s.faultLocked("a call is queued that is %d", c.progress)
		}
	}
	stats := d.stats
	switch n := len(d.slots.inFlight); {
	case n > p.manySlots:
		s.faultLocked("%d batches are in flight", n)
	case d.slots.overdue > p.manySlots+2:
		s.faultLocked("%d batches are overdue", d.slots.overdue)
	case n+d.slots.overdue != len(p.flights):
		s.faultLocked("%d batches are in flight, %d overdue, of %d", n, d.slots.overdue, len(p.flights))
	case len(d.queue.calls) > MaxQueue:
		s.faultLocked("%d calls wait", len(d.queue.calls))
	case gone != d.queue.abandoned:
		s.faultLocked("%d calls are abandoned, want %d", d.queue.abandoned, gone)
	case live > 0 && (is.state == open || is.closed):
		s.faultLocked("%d calls wait: %s, closed %t", live, is, is.closed)
	case len(d.queue.calls) > 0 && (n == 0 || is.healthy && n < d.slots.limit()):
		s.faultLocked("%d calls wait, %d batches are in flight", len(d.queue.calls), n)
	case held != p.waiting:
		s.faultLocked("%d callers wait, %d calls are queued or sent", p.waiting, held)
	case stats.Batches != p.sentBatches || stats.Calls != p.sentCalls:
		s.faultLocked("the figures are %+v, want %d batches, %d calls", stats, p.sentBatches, p.sentCalls)
	case p.opens-p.backs < 0 || p.opens-p.backs > 1:
		s.faultLocked("%d outages are in the log, %d ends", p.opens, p.backs)
	}
	for _, f := range p.flights {
		f.overdue = f.b.overdue
	}
	if d.probing && (!p.probing || p.backs > p.ended) {
		p.proberSince = now
	}
	p.probing, p.ended = d.probing, p.backs
	p.seen, p.landed = is, nil
	p.answered, p.mayExpire, p.mustExpire, p.flushed, p.saidOpen = false, false, false, false, false
	p.maxOverdue = d.slots.limit() + 2
}
