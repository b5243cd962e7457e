package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

var (
	errRefused = errors.New("connection refused")
	errCut     = errors.New("connection reset")
	errReply   = errors.New("an error reply")
	errDies    = errors.New("a panic or a Goexit")
)

// process is a dispatcher and its way to the server, of which it is the Transport and the log.
type process struct {
	s          *simulation
	index      int
	d          *Dispatcher
	timeout    time.Duration
	slots      int // how many batches may be in flight at low latency
	manySlots  int // and at high latency
	maxOverdue int // overdue batches that there might be when last looked
	oneOfMany  bool
	inline     bool
	phases     []struct {
		until   time.Duration
		weather weather
	}
	floodAt, closeAt time.Duration // 0 is never

	drawn        time.Duration
	nth          int
	waiting      int          // callers in Do
	flights      []*simFlight // in Send, without probes
	landed       []*simFlight // since the last check
	probes       int          // in Send
	pings        int
	answered     bool // a probe was, in time, since the last check
	mayExpire    bool // since the last check a Do has begun or left
	mustExpire   bool // since the last check a Do has left
	flushed      bool // since the last check a Do that had waited returned that the breaker is open
	saidOpen     bool // since the last check a Do returned so at once
	flooded      bool
	sentBatches  uint64
	sentCalls    uint64
	newest       [2]time.Time // the newest call sent: at this instant, before it
	newestAt     time.Time
	inlineFrom   time.Time
	inlinePause  time.Duration
	opens, backs int // lines of the log
	closing      time.Time
	closeEnded   time.Time
	seen         shadow
	openedAt     time.Time
	probing      bool
	proberSince  time.Time // an answer to an older probe does not count: its prober has ended
	tried        []*simProbe
	pingedAt     time.Time // a ping was answered
	probedAt     time.Time // a probe was sent
	blindAt      time.Time // one was, without an answer to its ping
	ended        int       // lines of the log at the last check
	hanging      int       // pings and probes of the faults
	hung         time.Time // when the last ping or probe of the faults ended
}

// simFlight is a batch in Send.
type simFlight struct {
	b       *Batch
	ops     []*simOp
	sentAt  time.Time
	probe   *simProbe // if it is one
	overdue bool      // at the last check
	inline  bool
	deaf    bool
	goexit  bool
	err     error // what Send returns
}

func newProcess(s *simulation, i int, r *rand.Rand) *process {
	p := &process{
		s: s, index: i, inline: r.IntN(2) == 0, inlinePause: 30 * time.Second,
		timeout: time.Duration([]int{10, 20, 50, 50, 50, 100, 200, 1500}[r.IntN(8)]) * time.Millisecond,
	}
	conns := []int{0, 1, 2, 3, 100}[r.IntN(5)]
	p.slots, p.manySlots = 2, 16
	if conns == 1 {
		p.slots, p.manySlots = 1, 1
	} else if conns == 2 || conns == 3 {
		p.manySlots = 2
	}
	if p.oneOfMany = r.IntN(4) == 0; p.oneOfMany {
		if p.slots = 1; conns == 2 || conns == 3 {
			p.manySlots = 1
		}
	}
	for until := time.Duration(0); until < s.horizon; {
		longest := []int{20, 200, 2000, 20_000}[r.IntN(3+min(1, int(s.horizon/time.Minute)))]
		until += time.Duration(1+r.IntN(longest)) * time.Millisecond
		phase := struct {
			until   time.Duration
			weather weather
		}{until, weather(r.IntN(weathers))}
		if r.IntN(3) == 0 {
			phase.weather = chaos
		}
		p.phases = append(p.phases, phase)
	}
	if r.IntN(60) == 0 {
		p.floodAt = s.horizon / 2
	}
	if r.IntN(7) == 0 {
		p.closeAt = 1 + time.Duration(r.IntN(int(s.horizon/time.Millisecond)))*time.Millisecond
	}
	p.d = New(p.timeout, Server{
		Transport: p, Log: slog.New(p), Addr: "server", Conns: conns, Inline: p.inline, OneOfMany: p.oneOfMany,
	})
	s.traceLocked(p, "timeout %s, %d connections, inline %t, weather %v", p.timeout, conns, p.inline, p.phases)
	return p
}

// Send implements [Transport].
func (p *process) Send(ctx context.Context, b *Batch) (err error) {
	s := p.s
	s.mu.Lock()
	flight, probe := p.departLocked(ctx, b)
	f, r := p.fateLocked(false, probe)
	flight.deaf, flight.goexit = f.deaf, f.dies == 2
	if len(flight.ops) > 0 {
		s.traceLocked(p, "send of %d calls from op %d on (%s, inline %t): %+v",
			len(flight.ops), flight.ops[0].id, millis(until(ctx)), flight.inline, f)
	} else {
		s.traceLocked(p, "probe is sent: %+v", f)
	}
	s.mu.Unlock()
	s.happens()

	flight.err = errDies
	defer func() {
		s.mu.Lock()
		p.arriveLocked(flight, f, probe)
		s.mu.Unlock()
		s.happens()
	}()
	if err = f.wait(ctx, f.before); err == nil {
		s.mu.Lock()
		p.doLocked(b, flight, f, r)
		s.mu.Unlock()
		if err = f.wait(ctx, f.after); err == nil {
			err = f.err
		}
	}
	if f.dies == 1 {
		panic("of a hook")
	} else if f.dies == 2 {
		runtime.Goexit()
	}
	if err != nil {
		for _, m := range b.Groups {
			m.Err = err
		}
	}
	if f.cancels {
		for _, o := range flight.ops {
			s.mu.Lock()
			if now := time.Now(); o.ctxErr == context.Canceled && o.ctxEnd.After(now.Add(30*time.Minute)) && !o.ended {
				o.cancel() // it does nothing if the context cannot be cancelled
				if c := o.call.caller.ends[0]; c != nil && c.Err() != nil {
					o.ctxEnd = now
				}
			}
			s.mu.Unlock()
		}
	}
	for _, o := range flight.ops {
		o.answer = o.group(b).Err
	}
	flight.err = err
	return err
}

// group returns the group that has an op, or nil.
func (o *simOp) group(b *Batch) *Group {
	for _, m := range b.Groups {
		for c := m.Call; c != nil; c = c.next {
			if c == o.call {
				return m
			}
		}
	}
	return nil
}

func until(ctx context.Context) time.Duration {
	end, _ := ctx.Deadline()
	return time.Until(end)
}

// departLocked looks at a batch that is sent.
func (p *process) departLocked(ctx context.Context, b *Batch) (f *simFlight, probe bool) {
	s, now := p.s, time.Now()
	f = &simFlight{b: b, sentAt: now}
	if s.ops[b.calls[0]] == nil {
		p.probes++
		f.probe = &simProbe{began: now.Add(until(ctx) - max(p.timeout, time.Second)), sent: true}
		p.beginsLocked()
		p.checkProbeLocked(b, f)
		return f, true
	}
	f.inline = b.calls[0].caller.ends[0] == nil
	p.flights = append(p.flights, f)
	urgent := false
	if p.newestAt != now {
		p.newest[1], p.newestAt = p.newest[0], now
	}
	last := p.newest[1]
	for _, c := range b.calls {
		o := s.ops[c]
		if o == nil {
			s.faultLocked("a call that belongs to nobody is sent")
			continue
		}
		f.ops = append(f.ops, o)
		o.sends++
		o.sentAt, o.flight, o.inline = now, f, f.inline
		urgent = urgent || o.op.Verb == bucket.Return
		switch {
		case o.sends > 1:
			s.faultLocked("op %d is sent %d times", o.id, o.sends)
		case o.ended && now.After(o.endedAt):
			s.faultLocked("op %d is sent after its caller has left", o.id)
		case o.dead && !f.inline:
			s.faultLocked("op %d is sent, though its context had ended", o.id)
		case o.start.Before(last):
			s.faultLocked("op %d is sent after a later one", o.id)
		}
		last = o.start
		if o.start.After(p.newest[0]) {
			p.newest[0] = o.start
		}
	}
	p.checkGroupsLocked(b)
	span := max(p.timeout, 900*time.Millisecond)
	if urgent || f.inline {
		span = p.timeout
	}
	end, _ := ctx.Deadline()
	if left := end.Sub(now); (left < span || left > span+span/10) && p.closeEnded.IsZero() {
		s.faultLocked("a batch has %s, want %s to a tenth more", left, span)
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if n := len(p.d.slots.inFlight); n > p.manySlots {
		s.faultLocked("%d batches are in flight", n)
	}
	if f.inline {
		p.checkInlineLocked(f)
	}
	if p.seen.state == open && p.d.breaker.state == open {
		s.faultLocked("op %d is sent while the breaker is open", f.ops[0].id)
	}
	if p.seen.closed {
		s.faultLocked("op %d is sent after Close", f.ops[0].id)
	}
	return f, false
}

// checkInlineLocked looks at a call that its caller sends.
func (p *process) checkInlineLocked(f *simFlight) {
	s, now := p.s, f.sentAt
	switch {
	case !p.inline || len(f.b.calls) != 1:
		s.faultLocked("%d calls are sent inline", len(f.b.calls))
	case now.Before(p.inlineFrom):
		s.faultLocked("op %d is sent inline", f.ops[0].id)
	case p.timeout > 100*time.Millisecond && f.ops[0].cancels:
		s.faultLocked("op %d is sent inline for %s, though its caller may leave", f.ops[0].id, p.timeout)
	case f.ops[0].ctxErr == context.DeadlineExceeded && !f.ops[0].ctxEnd.After(now.Add(p.timeout+p.timeout/10)):
		s.faultLocked("op %d is sent inline, but its context may end before", f.ops[0].id)
	}
}

func (p *process) isName(name string) bool { return strings.HasPrefix(name, "name of key ") }
