package dispatch

import (
	"context"
	"math/rand/v2"
	"time"
)

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
