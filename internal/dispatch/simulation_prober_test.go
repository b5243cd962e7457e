package dispatch

import (
	"context"
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
