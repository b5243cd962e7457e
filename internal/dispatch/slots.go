package dispatch

import (
	"slices"
	"sync"
	"time"
)

const (
	// MaxInFlight is how many batches of queued calls may be in flight to a server of low latency, one if
	// the last was not answered. Fewer batches are larger, and so less work.
	MaxInFlight = 2
	// maxHighLatencyInFlight is how many may be in flight to a server of high latency. There a call
	// that waits for a batch waits for a whole round trip.
	maxHighLatencyInFlight = 16
	// maxAlone is how many batches of one call may be in flight to a server of low latency while batches are small.
	// A call that waits then needs another goroutine, and seldom shares its batch.
	maxAlone = 4
	// fewCalls is how many calls a batch has at least, on average, if batches are not small.
	fewCalls = 2
	// moreOverdue is how many more batches may be overdue than in flight. Each may hold a
	// connection. All that are in flight may become overdue at once, and then one for each further
	// failure until the breaker opens.
	moreOverdue = maxFailures - 1
)

// slots are what batches in flight to a server hold. They have no lock of their own: their owner, a
// dispatcher, calls them behind its lock.
type slots struct {
	few, many int      // how many there are if the latency is low, and if it is high
	alone     int      // how many there are for calls alone if the latency is low and batches are small
	most      int      // how many batches may be unanswered: each holds a connection
	inFlight  []*Batch // without those that are overdue
	overdue   int      // batches that were late and have no slot
	healthy   bool     // the last batch was answered
	calls     float64  // in a batch, about
	roundTrip roundTrip
	idle      sync.Pool       // of *Batch: those without a slot
	running   *sync.WaitGroup // of those that are not released yet
}

func newSlots(server Server, running *sync.WaitGroup) *slots {
	s := &slots{few: MaxInFlight, many: maxHighLatencyInFlight, running: running}
	s.idle.New = func() any { return newBatch() }
	if server.OneOfMany {
		s.few = 1
	}
	if s.alone = s.few; server.Inline {
		s.alone = maxAlone
	}
	s.most = 2*s.many + moreOverdue
	if server.Conns > 0 { // the probes have some, too
		s.few = min(s.few, server.Conns)
		s.most = max(s.few+moreOverdue+1, min(s.most, server.Conns-maxProbes))
		s.many = max(s.few, min(s.many, server.Conns-maxProbes))
		s.alone = min(s.alone, s.many)
	}
	return s
}

// limit returns how many batches may be in flight while the server answers.
func (s *slots) limit() int {
	if s.roundTrip.high() {
		return s.many
	}
	return s.few
}

// free reports whether another batch may leave.
func (s *slots) free() bool {
	n := len(s.inFlight)
	return n == 0 || s.healthy && n < s.limit() && s.batches() < s.most
}

// freeForOne reports whether a call may leave alone, as a batch of its own. If the latency is low and
// others are in flight, it may only while batches are small, so that waiting for others gains nothing.
func (s *slots) freeForOne() bool {
	n := len(s.inFlight)
	if n > 0 && !s.roundTrip.high() {
		return s.healthy && s.calls < fewCalls && n < s.alone && s.batches() < s.most
	}
	return n == 0 || s.free()
}

// take gives a slot to an empty batch, which is about to leave.
func (s *slots) take() *Batch {
	b := s.idle.Get().(*Batch)
	b.overdue, b.inline, b.since = false, false, time.Now()
	s.inFlight = append(s.inFlight, b)
	s.running.Add(1)
	return b
}

// release takes the slot of an empty batch back, unless the batch gave it up when it became overdue.
func (s *slots) release(b *Batch) {
	if b.overdue {
		s.overdue--
	} else {
		s.inFlight = slices.DeleteFunc(s.inFlight, func(other *Batch) bool { return other == b })
	}
	s.idle.Put(b)
	s.running.Done()
}

// expire frees the slots of late batches, unless too many are overdue. Their calls are still
// answered if the server answers. It reports whether any batch is late, and when the last one was
// sent.
func (s *slots) expire(now time.Time, timeout time.Duration) (sentAt time.Time, late bool) {
	s.inFlight = slices.DeleteFunc(s.inFlight, func(b *Batch) bool {
		if now.Sub(b.since) < timeout {
			return false
		}
		if b.overdue = s.overdue < min(s.limit()+moreOverdue, s.most-1); b.overdue {
			s.overdue++
		}
		late = true
		switch {
		case !b.overdue: // it keeps others from the server, each of which is a new failure
			sentAt = now
		case b.since.After(sentAt):
			sentAt = b.since
		}
		return b.overdue
	})
	return sentAt, late
}

// answered notes how long an answered batch took, and its number of calls.
func (s *slots) answered(took time.Duration, calls int) {
	s.healthy = true
	s.calls += (float64(calls) - s.calls) / 8
	s.roundTrip.measure(took, calls)
}

// batches returns how many batches are not answered yet.
func (s *slots) batches() int { return len(s.inFlight) + s.overdue }
