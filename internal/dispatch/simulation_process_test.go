package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// checkGroupsLocked checks that all calls of a batch are in its groups, and those on one key in
// their order.
func (p *process) checkGroupsLocked(b *Batch) {
	byKey := map[string][]*Call{}
	for _, m := range b.Groups {
		key := string(m.Key)
		if m.First && byKey[key] != nil {
			p.s.faultLocked("%s is not first", key)
		}
		charges := int64(0)
		for c := m.Call; c != nil; c = c.next {
			byKey[string(c.Key)] = append(byKey[string(c.Key)], c)
			charges += c.Op.Charges
		}
		if charges != m.Charges {
			p.s.faultLocked("%s: %d charges, want %d", key, m.Charges, charges)
		}
	}
	for _, c := range b.calls {
		calls := byKey[string(c.Key)]
		if len(calls) == 0 || calls[0] != c {
			p.s.faultLocked("the calls of %s are not in order", c.Key)
			return
		}
		byKey[string(c.Key)] = calls[1:]
	}
}

// doLocked does a batch or a part of it. The model does its calls one by one.
func (p *process) doLocked(b *Batch, flight *simFlight, f fate, r *rand.Rand) {
	s := p.s
	count := len(b.Groups)
	if f.done >= 0 {
		count = min(count, f.done)
	}
	order := make([]*Group, 0, count)
	if f.reorders { // as one command does it for several keys
		for _, m := range b.Groups[:count] {
			if m.First && m.Op.Verb == bucket.Take && m.Charges > 0 && len(m.Buckets) == 1 {
				order = append(order, m)
			}
		}
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	early := len(order)
	for _, m := range b.Groups[:count] {
		if early == 0 || !(m.First && m.Op.Verb == bucket.Take && m.Charges > 0 && len(m.Buckets) == 1) {
			order = append(order, m)
		}
	}
	done := map[*Call]bool{}
	for _, m := range order {
		if f.replies > 0 && r.IntN(f.replies) == 0 {
			m.Err = errReply
			continue
		}
		op := m.Op
		op.Charges = m.Charges
		s.store.Do(storeKey(m.Key, m.Others), m.Buckets, op, m.Found)
		for c := m.Call; c != nil; c = c.next {
			done[c] = true
		}
	}
	for _, o := range flight.ops {
		if done[o.call] {
			o.want = make([]bucket.State, len(o.key.buckets))
			s.model.Do(storeKey(o.call.Key, o.call.Others), o.key.buckets, o.op, o.want)
		}
	}
}

// storeKey is the key of a call's buckets in the store, which has no calls on several keys: then it
// is their names.
func storeKey(key []byte, others []OtherKey) []byte {
	for _, other := range others {
		key = fmt.Appendf(nil, "%s, %s", key, other.Key)
	}
	return key
}

// arriveLocked notes that Send returns.
func (p *process) arriveLocked(flight *simFlight, f fate, probe bool) {
	now := time.Now()
	took := now.Sub(flight.sentAt)
	if probe {
		p.probes--
		p.removeProbeLocked(flight.probe)
		p.endsLocked(flight.sentAt)
		p.s.traceLocked(p, "probe returns %v", flight.err)
		p.answered = p.answered || flight.err == nil && took < p.timeout && !flight.probe.began.Before(p.proberSince)
		return
	}
	for i, other := range p.flights {
		if other == flight {
			p.flights = append(p.flights[:i:i], p.flights[i+1:]...)
		}
	}
	p.landed = append(p.landed, flight)
	p.sentBatches++
	p.sentCalls += uint64(len(flight.ops))
	p.s.traceLocked(p, "send from op %d on returns %v", flight.ops[0].id, flight.err)
	for _, o := range flight.ops {
		if o.answers = now; flight.err == errDies {
			o.answer = errDies
		}
	}
	if flight.inline && took > p.timeout+2*(p.timeout/10)+10*time.Millisecond {
		switch good := flight.sentAt.Sub(p.inlineFrom); {
		case good >= p.inlinePause:
			p.inlinePause = time.Minute
		case good >= 0: // soon after the last pause
			p.inlinePause *= 2
		}
		p.inlineFrom = now.Add(p.inlinePause)
	}
}

// Reason implements [Transport].
func (p *process) Reason(ctx context.Context, _ string, err error) (text, word string) {
	p.s.mu.Lock()
	f, _ := p.fateLocked(true, false)
	p.s.mu.Unlock()
	if f.dies == 0 {
		f.deaf = false
		_ = f.wait(ctx, f.before)
	}
	return err.Error(), "word"
}

// Enabled implements [slog.Handler].
func (p *process) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler]. It may panic.
func (p *process) Handle(_ context.Context, line slog.Record) error {
	p.s.mu.Lock()
	p.s.traceLocked(p, "log: %s", line.Message)
	if strings.Contains(line.Message, logOpen) {
		p.opens++
	} else if strings.Contains(line.Message, logBack) {
		p.backs++
	}
	f, _ := p.fateLocked(true, false)
	p.s.mu.Unlock()
	p.s.happens()
	switch f.dies {
	case 1:
		panic("of a log handler")
	case 2:
		runtime.Goexit()
	}
	return nil
}

// WithAttrs implements [slog.Handler].
func (p *process) WithAttrs([]slog.Attr) slog.Handler { return p }

// WithGroup implements [slog.Handler].
func (p *process) WithGroup(string) slog.Handler { return p }

// flood fills the queue: by calls that were left, and now and then by calls whose callers are about
// to leave.
func (p *process) flood() {
	if p.floodAt == 0 {
		return
	}
	time.Sleep(p.floodAt)
	for i := range 5 { // so many find it full
		c := newCaller(p.s, p, 20_000+i)
		go func() {
			time.Sleep(time.Millisecond)
			c.ask(c.drawOp())
		}()
	}
	p.s.mu.Lock()
	p.flooded = true
	p.s.traceLocked(p, "flood")
	p.s.mu.Unlock()
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.d.acceptLocked() != nil {
		return
	}
	leaving := p.s.rand(3).IntN(2) == 0
	gone := &Call{progress: left}
	for len(p.d.queue.calls) < MaxQueue-2 {
		c := gone
		if leaving && len(p.d.queue.calls) > MaxQueue/8 {
			c = NewCall()
			c.caller.ends = [2]context.Context{deadContext{context.Background()}, context.Background()}
		} else {
			p.d.queue.abandoned++
		}
		p.d.queue.calls = append(p.d.queue.calls, c)
	}
	p.d.startRunLocked()
}

func (p *process) closeEarly() {
	if p.closeAt > 0 {
		time.Sleep(p.closeAt)
		p.close()
	}
}

// close closes the dispatcher, and looks how long it takes.
func (p *process) close() {
	s := p.s
	s.mu.Lock()
	p.closing = time.Now()
	s.traceLocked(p, "close")
	s.mu.Unlock()
	s.happens()
	p.d.Close()
	s.mu.Lock()
	p.closeEnded = time.Now()
	s.traceLocked(p, "closed")
	took := p.closeEnded.Sub(p.closing)
	switch bound := max(time.Second, p.timeout); {
	case took > bound:
		s.faultLocked("Close takes %s", took)
	case took < bound && len(p.flights)+p.probes > 0:
		s.faultLocked("Close ends before what is in flight")
	}
	s.mu.Unlock()
	s.happens()
}

// end looks, once the server is well, whether it is found, answers, and is left in peace; then it
// closes.
func (p *process) end(callers int) {
	s := p.s
	for {
		s.mu.Lock()
		busy := len(p.flights)+p.probes+p.pings > 0
		s.mu.Unlock()
		if !busy {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if p.closeAt == 0 {
		for wait := p.foundWithin(); wait > 0; wait = p.foundWithin() - time.Since(p.wellSince()) {
			time.Sleep(wait)
		}
		c := newCaller(s, p, -1-callers)
		c.calm = true
		for range 5 {
			c.ask(c.drawOp())
		}
		time.Sleep(time.Second + p.foundWithin())
		s.mu.Lock()
		if !p.d.Idle() {
			s.faultLocked("the dispatcher is not idle")
		}
		if p.opens != p.backs {
			s.faultLocked("%d outages are in the log, %d ends", p.opens, p.backs)
		}
		s.mu.Unlock()
		p.close()
		s.mu.Lock()
		if !p.closeEnded.Equal(p.closing) {
			s.faultLocked("Close takes %s", p.closeEnded.Sub(p.closing))
		}
		s.mu.Unlock()
	}
	for {
		s.mu.Lock()
		busy := len(p.flights)+p.probes+p.pings+p.waiting > 0
		s.mu.Unlock()
		if !busy {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
