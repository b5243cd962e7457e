package dispatch

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// endsLocked notes that a ping or probe ends. One that began while there were faults may have kept
// others waiting.
func (p *process) endsLocked(began time.Time) {
	if began.Before(p.s.start.Add(p.s.horizon)) {
		p.hanging--
		p.hung = time.Now()
	}
}

func (p *process) beginsLocked() {
	if p.s.now() < p.s.horizon {
		p.hanging++
	}
}

// Ping implements [Transport].
func (p *process) Ping(ctx context.Context, key string, timeout time.Duration) error {
	s, began := p.s, time.Now()
	s.mu.Lock()
	p.pings++
	p.beginsLocked()
	f, _ := p.fateLocked(true, false)
	s.traceLocked(p, "ping: %+v", f)
	if !p.isName(key) || timeout != p.timeout {
		s.faultLocked("a ping to %q within %s", key, timeout)
	}
	probe := &simProbe{began: began, ctx: ctx}
	p.addProbeLocked(probe)
	p.d.mu.Lock()
	if p.seen.state != open && p.d.breaker.state != open {
		s.faultLocked("ping while the breaker is %s", p.seen.state)
	}
	p.d.mu.Unlock()
	s.mu.Unlock()
	s.happens()
	defer func() {
		s.mu.Lock()
		p.pings--
		p.removeProbeLocked(probe)
		p.endsLocked(began)
		s.traceLocked(p, "ping ends")
		s.mu.Unlock()
		s.happens()
	}()
	err := f.wait(ctx, f.before)
	switch {
	case f.dies == 1:
		panic("of a Dialer")
	case f.dies == 2:
		runtime.Goexit()
	case err != nil:
		return err
	case f.err == nil && ctx.Err() == nil:
		s.mu.Lock()
		p.pingedAt = time.Now()
		s.mu.Unlock()
	}
	return f.err
}

// simProbe is a ping, or a probe that is sent after it.
type simProbe struct {
	began time.Time
	ctx   context.Context
	sent  bool
}

// addProbeLocked looks whether there are too many probes of one prober, or pings among them.
func (p *process) addProbeLocked(probe *simProbe) {
	p.tried = append(p.tried, probe)
	probes, pings := 0, 0
	for _, other := range p.tried {
		if other.began.Before(p.proberSince) {
			continue
		}
		if other.sent || other.ctx.Err() == nil { // else nobody waits for the ping
			probes++
		}
		if !other.sent {
			pings++
		}
	}
	if probes > 4 || pings > 8 {
		p.s.faultLocked("%d probes, %d pings", probes, pings)
	}
}

func (p *process) removeProbeLocked(probe *simProbe) {
	p.tried = slices.DeleteFunc(p.tried, func(other *simProbe) bool { return other == probe })
}

// checkProbeLocked looks at a probe that is sent: after a ping, or now and then without.
func (p *process) checkProbeLocked(b *Batch, f *simFlight) {
	op, name := b.calls[0].Op, string(b.calls[0].Names[0])
	if len(b.calls) != 1 || op.Verb != bucket.Take || op.Charges != 0 || !p.isName(name) {
		p.s.faultLocked("a probe of %d calls: %+v", len(b.calls), op)
	}
	p.addProbeLocked(f.probe)
	p.probedAt = f.sentAt
	if !p.pingedAt.Equal(f.sentAt) && !f.probe.began.Before(p.proberSince) {
		if since := f.probe.began.Sub(later(p.blindAt, p.proberSince)); since < 5*time.Second {
			p.s.faultLocked("a probe is sent without a ping, %s after another one", since)
		}
		p.blindAt = f.probe.began
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// wellSince returns since when there is nothing that keeps the prober from finding the server.
func (p *process) wellSince() time.Time {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.wellSinceLocked()
}

func (p *process) wellSinceLocked() time.Time {
	return later(p.s.start.Add(p.s.horizon), later(p.openedAt, p.hung))
}

// foundWithin is how long it takes to find a server that is well: what is left of the last probe,
// the longest pause, and a probe. The first of them is preceded by the line of the log.
func (p *process) foundWithin() time.Duration {
	return 480*time.Millisecond + 2*p.timeout + 10*time.Millisecond
}

// weather is how the server and the way to it are for a while.
type weather uint8

const (
	well     weather = iota
	slow             // about as long as the timeout
	down             // all is denied
	frozen           // nothing is answered
	half             // pings and probes are answered, calls are not
	blind            // pings fail, the rest is well
	deaf             // as frozen, and whoever connects hangs for seconds
	chaos            // each batch has its own fault
	weathers = iota  // how many there are
)

// fate is what becomes of a batch or a ping.
type fate struct {
	before, after time.Duration // it is done
	deaf          bool          // to its context
	done          int           // how many groups are decided; -1 is all
	err           error         // for all, after those were done
	replies       int           // of so many groups, one is answered by an error; 0 is none
	dies          int           // 1: panics, 2: ends its goroutine
	cancels       bool          // callers leave at the instant of the answer
	reorders      bool          // first calls to take are done before others
}

func (p *process) weatherLocked() weather {
	if p.s.now() >= p.s.horizon {
		return well
	}
	for _, phase := range p.phases {
		if p.s.now() < phase.until {
			return phase.weather
		}
	}
	return chaos
}

// fateLocked draws what becomes of a batch or a ping. That depends on the seed and the time alone.
func (p *process) fateLocked(ping, probe bool) (f fate, r *rand.Rand) {
	if p.nth++; p.drawn != p.s.now() {
		p.nth, p.drawn = 0, p.s.now()
	}
	r = p.s.rand(2, uint64(p.index), uint64(p.drawn), uint64(p.nth))
	ms := func(max int) time.Duration { return time.Duration(r.IntN(max+1)) * time.Millisecond }
	timeout := int(p.timeout / time.Millisecond)
	f = fate{before: ms(1), after: ms(2), done: -1, reorders: r.IntN(2) == 0, cancels: r.IntN(8) == 0}
	if r.IntN(12) == 0 {
		f.replies = 1 + r.IntN(5)
	}
	now := p.weatherLocked()
	switch {
	case now == half && (ping || probe), now == blind && !ping:
		now = well
	case now == half:
		now = weather(down + weather(r.IntN(2)))
	case now == blind:
		now = down
	case now == chaos && r.IntN(3) == 0:
		now = weather(r.IntN(4))
	}
	switch now {
	case well:
	case slow:
		f.before, f.after = ms(timeout), ms(timeout/2)
	case down:
		f.done, f.err = 0, errRefused
	case frozen:
		f.before = time.Hour
	case deaf:
		if f.before = time.Hour; ping {
			f.before, f.deaf = ms(10_000), true
			return f, r
		}
	case chaos:
		f.before, f.after = ms(timeout/2), ms(timeout/4)
		switch r.IntN(8) {
		case 0: // the reply is lost
			f.err = errCut
		case 1: // cut in the middle
			f.done, f.err = r.IntN(3), errCut
		case 2:
			f.before = ms(3 * timeout)
		case 3:
			f.after = ms(3 * timeout)
		case 4:
			f.done, f.err = 0, errRefused
		case 5:
			f.dies = 1 + r.IntN(2)
			f.done = r.IntN(3) - 1
		}
	}
	if now != well && now != down && r.IntN(6) == 0 && (!p.inline || r.IntN(5) == 0 || p.s.horizon > time.Minute) {
		f.deaf, f.before, f.after = true, min(f.before, ms(4*timeout)), min(f.after, ms(1500))
		if p.s.horizon > time.Minute { // so that callers send inline no more, again and again
			f.before = ms(4 * timeout)
		}
	}
	return f, r
}

// wait takes so long, or until the context ends unless the batch is deaf to it.
func (f *fate) wait(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	if f.deaf {
		time.Sleep(d)
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
