package dispatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/goroutine"
)

const (
	// The gap between probes grows from one to the other by doubling, and varies at random by up to
	// a half.
	minProbeGap, maxProbeGap = 50 * time.Millisecond, 320 * time.Millisecond
	// probeTimeout is how long a probe may take to make a connection. Its answer counts only if it
	// is in time.
	probeTimeout = time.Second
	// maxProbes is how many probes may be unanswered. Each may hold a connection of the client.
	maxProbes = 4
	// maxPings is how many pings may be unanswered, as a Dialer may outlive its context.
	maxPings = 2 * maxProbes
	// blindGap is how often a probe peeks though its ping has failed, because a hook of the client
	// may have other ways to the server.
	blindGap = 5 * time.Second
	// confirmTime is how long the breaker must not open again before the server counts as back.
	confirmTime = time.Second
)

// prober finds out when the server of an open breaker is back. It is one goroutine, from when the
// breaker opens until it has not been open for confirmTime, and owns all its fields. Each probe is
// a goroutine that sends what it saw on answers.
//
// A probe first pings the server on a connection of its own, and then peeks at a bucket through the
// client, which changes nothing. So nothing is replayed when the server is back.
type prober struct {
	*Dispatcher
	peek    *Call
	probes  int // that have not ended
	answers chan probeAnswer
	pings   chan struct{} // has one for each ping that has not ended
	blind   time.Time     // when a probe last was to peek even if its ping fails
}

type probeAnswer uint8

const (
	noAnswer probeAnswer = iota
	lateAnswer
	answerInTime
)

func newProber(d *Dispatcher, peek *Call) *prober {
	return &prober{
		Dispatcher: d, peek: peek, blind: time.Now(),
		answers: make(chan probeAnswer, maxProbes), pings: make(chan struct{}, maxPings),
	}
}

// run probes until the server is back, or the dispatcher is closed or dropped. The error is the one
// that has opened the breaker.
func (p *prober) run(err error) {
	since := time.Now()
	var counting sync.WaitGroup
	defer counting.Wait()
	reason, known := p.opened(err)
	if !known {
		return
	}
	p.log(func() {
		more := []any{"server", p.server.Addr, "reason", reason}
		if p.server.Outage != nil {
			more = append(more, p.server.Outage()...)
		}
		p.server.Log.Warn("ginlimit: Redis unavailable, circuit breaker open", more...)
	})
	for gap := minProbeGap; ; gap = min(2*gap, maxProbeGap) { // the more often it opens again, the longer
		pause := gap
		for !p.find(pause/2 + rand.N(pause)) {
			if p.life.ctx.Err() != nil {
				return
			}
			pause = min(2*pause, maxProbeGap)
		}
		found := time.Since(since)
		if err = p.confirm(); err == nil {
			p.log(func() {
				after := found.Round(time.Millisecond).String() // as text: in JSON slog has nanoseconds
				p.server.Log.Info("ginlimit: Redis is back", "server", p.server.Addr, "after", after)
			})
			return
		}
		if p.life.ctx.Err() != nil { // it has not opened
			return
		}
		counting.Go(func() { p.opened(err) }) // it may connect, and probes do not wait for that
		for len(p.answers) > 0 {              // what probes saw before it opened again is old
			<-p.answers
			p.probes--
		}
	}
}

// opened counts that the breaker has opened, and returns the reason. It is not known if the
// dispatcher is closed meanwhile, which ends the search for it.
func (p *prober) opened(err error) (text string, known bool) {
	ctx, cancel := context.WithTimeout(p.life.ctx, p.timeout.span)
	defer cancel()
	reason := <-goroutine.Isolate(func() ([2]string, error) { // a hook of the client may panic
		text, word := p.server.Transport.Reason(ctx, p.peek.Names[0].String(), err)
		return [2]string{text, word}, nil
	})
	if reason.Err != nil {
		reason.Value = [2]string{reason.Err.Error(), "client"}
	}
	if p.life.ctx.Err() != nil {
		return "", false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.changed(open, reason.Value[1])
	return reason.Value[0], true
}

// log writes a line. The application's log handler may panic.
func (p *prober) log(line func()) {
	<-goroutine.Isolate(func() (any, error) { line(); return nil, nil })
}

// confirm makes the breaker half-open and waits. It returns nil if the breaker does not open again:
// then the prober has ended. Otherwise it returns the error that has opened the breaker.
func (p *prober) confirm() (err error) {
	p.mu.Lock()
	p.breaker.found()
	p.stats.changed(halfOpen, "")
	p.mu.Unlock()
	select {
	case <-time.After(confirmTime):
	case err = <-p.reopened:
		return err
	case <-p.life.ctx.Done():
		return p.life.ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case err = <-p.reopened:
	default:
	}
	p.probing = err != nil
	return err
}

// find pauses, sends a probe and reports whether the server answers in time. A late answer ends the
// pause: the server may have woken up, or a new connection be ready now.
func (p *prober) find(pause time.Duration) bool {
	if p.server.Dropped != nil && p.server.Dropped.Load() {
		p.life.stop() // its goroutines would keep it for ever
	}
	timer := time.NewTimer(pause)
	for waits := true; waits; {
		select {
		case <-timer.C:
			waits = false
		case answer := <-p.answers:
			p.probes--
			if answer == answerInTime { // once it had a connection
				return true
			}
			waits = answer == noAnswer
		case <-p.life.ctx.Done():
			return false
		}
	}
	if p.probes == maxProbes {
		return false
	}
	p.probes++
	blind := time.Since(p.blind) >= blindGap
	if blind {
		p.blind = time.Now()
	}
	p.life.running.Go(func() { p.probe(blind) })
	timer.Reset(min(p.timeout.span, maxProbeGap))
	select {
	case answer := <-p.answers:
		p.probes--
		return answer == answerInTime
	case <-timer.C:
	case <-p.life.ctx.Done():
	}
	return false
}

// probe peeks at the bucket if the server answers a ping, or in any case if it is blind.
func (p *prober) probe(blind bool) {
	answer := noAnswer
	defer func() { p.answers <- answer }()
	ctx, cancel := context.WithTimeout(p.life.ctx, max(p.timeout.span, probeTimeout))
	defer cancel()
	if p.ping(ctx) != nil && !blind {
		return
	}
	b := newBatch()
	b.calls = append(b.calls, p.peek.peek())
	b.coalesce()
	sentAt := time.Now()
	out := <-goroutine.Isolate(func() (struct{}, error) { return struct{}{}, p.server.Transport.Send(ctx, b) })
	switch {
	case out.Err != nil: // a hook of the client may also panic
	case time.Since(sentAt) < p.timeout.span:
		answer = answerInTime
	default:
		answer = lateAnswer
	}
}

// ping returns why the bucket's server does not answer, or nil. It does not wait for a Dialer that
// outlives its context by more than [goroutine.EndGrace], as that for TLS may.
func (p *prober) ping(ctx context.Context) error {
	select {
	case p.pings <- struct{}{}:
	default:
		return ErrLate // too many Dialers hang
	}
	_, err := goroutine.Bounded(ctx, goroutine.EndGrace, func() (struct{}, error) {
		defer func() { <-p.pings }()
		return struct{}{}, p.server.Transport.Ping(ctx, p.peek.Names[0].String(), p.timeout.span)
	})
	return err
}

// IsLate reports whether an error says that there was no answer in time.
func IsLate(err error) bool {
	var network net.Error
	return errors.Is(err, ErrLate) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &network) && network.Timeout()
}
