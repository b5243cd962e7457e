// Package dispatch carries calls to a server in batches, each of them within a timeout, and keeps
// callers from waiting for a server that does not answer.
package dispatch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// MaxInFlight is how many batches may be in flight to a server that is near, one if the last
	// was not answered. Fewer are larger, and so less work.
	MaxInFlight = 2
	// maxFarInFlight is how many may be in flight to a distant server, whose round trip takes
	// farTime or longer. There a call that waits for a batch waits for a whole round trip.
	maxFarInFlight = 16
	farTime        = 500 * time.Microsecond
	// maxMeasured is how many calls a batch may have to tell the round trip: a larger one takes the
	// server longer.
	maxMeasured = 4
	// minMeasured is how many batches must have told it: the first ones may have made a connection.
	minMeasured = 8
	// moreOverdue is how many more than may be in flight may be overdue. Each may hold a
	// connection. All that are in flight may become so at once, and then one for each further
	// failure until the breaker opens.
	moreOverdue = maxFailures - 1
	// A batch takes its share of the calls that wait, in between these numbers.
	minCalls, maxCalls = 128, 1024
	// MaxQueue is how many calls may wait for a batch; further ones fail.
	MaxQueue = 1 << 14
	// maxInline is the longest timeout for which a caller sends its call itself, since it then does
	// not look at the end of its context.
	maxInline = 100 * time.Millisecond
	// inlinePause is for how long no caller sends its call itself after such a call has outlived
	// its context. It doubles if that happens again soon.
	inlinePause = time.Minute
	// inlineGrace is how much later than that it may be on a busy machine.
	inlineGrace = 10 * time.Millisecond
	// connectTimeout is how long a batch may take that a goroutine sends, or a timeout where that
	// is longer. Its callers leave before; but the greetings of a new connection are round trips
	// too, which it must have the time for.
	connectTimeout = 900 * time.Millisecond
	// closeTimeout is how long Close waits for what is in flight, or a timeout where that is
	// longer.
	closeTimeout = time.Second
)

// Errors of [Dispatcher.Do] that are the dispatcher's own.
var (
	ErrClosed    = errors.New("the limiter is closed")
	ErrRetired   = errors.New("the dispatcher was retired")
	ErrOpen      = errors.New("circuit breaker open")
	ErrLate      = errors.New("no answer from Redis in time")
	ErrQueueFull = errors.New("too many decisions wait for Redis")
)

// Dispatcher carries calls to one server in batches.
//
// A call that finds a free slot goes at once, alone. Calls that arrive while all slots are taken
// wait, and are sent together when a slot is free again. In a batch, calls to take from the same
// buckets are merged into one, and each gets the levels that it would have found alone, in the
// order in which they came.
//
// A caller waits no longer than its context and the timeout. One that leaves before its batch does
// costs nothing; one that leaves later may have been charged. A batch that is late is overdue: it
// gives up its slot. While the breaker is open, nobody waits.
//
// Goroutines that end when nothing waits send batches. If the server is Inline, the caller of a
// call that goes alone sends it itself: handing it to another goroutine and back takes longer than
// Redis does.
type Dispatcher struct {
	server    Server
	places    int // how many batches may be in flight to a server that is near
	farPlaces int // and to a distant one
	timeout   sharedDeadline
	sending   sharedDeadline // of a batch that a goroutine sends
	spare     sync.Pool      // of *Batch
	ctx       context.Context
	stop      context.CancelFunc // ends the prober
	reopened  chan error         // tells the prober why, while it waits whether the server stays
	ended     sync.WaitGroup     // the batches in flight, and the prober

	mu         sync.Mutex // guards everything below
	queue      []*Call
	abandoned  int      // of those that are queued, their callers having left
	inFlight   []*Batch // without those that are overdue
	overdue    int
	healthy    bool          // the last batch was answered
	roundTrip  time.Duration // the least that a small batch takes; 0 is not known
	measured   int           // batches that have told it, up to minMeasured
	inlineFrom time.Time     // no caller sends its call itself before
	inlineLast time.Duration // the last pause
	breaker    breaker
	probing    bool // the prober runs
	stats      Stats
	closed     bool
	retired    bool // its server was forgotten
}

// Stats are the figures of a dispatcher.
type Stats struct {
	Batches, Calls uint64 // sent
	InFlight       int    // batches, those that are overdue among them
	Queued         int    // calls that wait for a batch
	Open           bool   // the breaker
	Transitions    map[Transition]uint64
}

// New returns a dispatcher for a server.
func New(timeout time.Duration, server Server) *Dispatcher {
	d := &Dispatcher{
		server: server, places: MaxInFlight, breaker: newBreaker(timeout), reopened: make(chan error, 1),
		timeout: sharedDeadline{span: timeout}, sending: sharedDeadline{span: max(timeout, connectTimeout)},
	}
	d.farPlaces = maxFarInFlight
	if server.OneOfMany {
		d.places = 1
	}
	if server.Conns > 0 {
		d.places = min(d.places, server.Conns)
		// If all hang, as many and moreOverdue are overdue, beside one batch and the probes.
		d.farPlaces = max(d.places, min(d.farPlaces, server.Conns-moreOverdue-1-maxProbes))
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d
}

// Do has a call done. It returns early with an error if the caller's context or the timeout ends.
func (d *Dispatcher) Do(ctx context.Context, c *Call) error {
	defer c.endBorrowed()
	d.mu.Lock()
	if err := d.acceptLocked(); err != nil {
		d.mu.Unlock()
		return err
	}
	if d.healthy && len(d.queue) == 0 && len(d.inFlight) < d.placesLocked() && d.sendsInlineLocked(ctx) {
		b := d.startLocked()
		d.mu.Unlock()
		return d.sendInline(ctx, b, c)
	}
	if !d.hasPlaceLocked() {
		d.expireLocked(c)
		if d.breaker.state == open {
			d.mu.Unlock()
			return ErrOpen
		}
	}
	timeout := d.timeout.context()
	c.ends = [2]context.Context{ctx, timeout}
	d.queue = append(d.queue, c)
	d.startRunLocked()
	d.mu.Unlock()

	err := ErrLate
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout.Done():
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-c.done: // answered at the last moment
		return c.err
	default:
	}
	c.abandoned = true
	if c.progress == queued {
		c.progress = left
		d.abandoned++
	}
	d.expireLocked(c)
	return err
}

// acceptLocked returns why no call is taken.
func (d *Dispatcher) acceptLocked() error {
	if len(d.queue) == MaxQueue && d.abandoned >= MaxQueue/4 {
		d.abandoned = 0
		d.queue = slices.DeleteFunc(d.queue, func(c *Call) bool { return c.progress == left })
	}
	switch {
	case d.retired:
		return ErrRetired
	case d.closed:
		return ErrClosed
	case d.breaker.state == open:
		return ErrOpen
	case len(d.queue) == MaxQueue:
		return ErrQueueFull
	}
	return nil
}

// sendsInlineLocked reports whether a caller may send its call itself.
func (d *Dispatcher) sendsInlineLocked(ctx context.Context) bool {
	if !d.server.Inline || ctx.Done() != nil && d.timeout.span > maxInline {
		return false
	}
	if !d.inlineFrom.IsZero() && time.Now().Before(d.inlineFrom) {
		return false
	}
	deadline, ok := ctx.Deadline()
	return !ok || time.Until(deadline) > d.timeout.span+d.timeout.slack()
}

// hasPlaceLocked reports whether another batch may leave.
func (d *Dispatcher) hasPlaceLocked() bool {
	n := len(d.inFlight)
	return n == 0 || d.healthy && n < d.placesLocked()
}

// placesLocked returns how many batches may be in flight while the server answers.
func (d *Dispatcher) placesLocked() int {
	if d.roundTrip < farTime || d.measured < minMeasured {
		return d.places
	}
	return d.farPlaces
}

// measureLocked notes how long an answered batch of so many calls took.
func (d *Dispatcher) measureLocked(took time.Duration, calls int) {
	switch took = max(1, took); {
	case calls > maxMeasured:
		return
	case d.roundTrip == 0 || took < d.roundTrip:
		d.roundTrip = took
	default:
		d.roundTrip += (took - d.roundTrip) / 16
	}
	d.measured = min(d.measured+1, minMeasured)
}

// startLocked takes a slot.
func (d *Dispatcher) startLocked() *Batch {
	b, ok := d.spare.Get().(*Batch)
	if !ok {
		b = newBatch()
	}
	b.overdue, b.since = false, time.Now()
	d.inFlight = append(d.inFlight, b)
	d.ended.Add(1)
	return b
}

// startRunLocked has a goroutine send what waits, if there is a slot.
func (d *Dispatcher) startRunLocked() {
	if len(d.queue) > 0 && d.hasPlaceLocked() {
		go d.run(d.startLocked())
	}
}

// expireLocked frees the slots of batches that are late, as long as not too many are overdue. Their
// calls are answered if they come back. It is called for a call that was not answered.
func (d *Dispatcher) expireLocked(c *Call) {
	now := time.Now()
	late, sentAt := false, time.Time{}
	d.inFlight = slices.DeleteFunc(d.inFlight, func(b *Batch) bool {
		if now.Sub(b.since) < d.timeout.span {
			return false
		}
		if b.overdue = d.overdue < d.placesLocked()+moreOverdue; b.overdue {
			d.overdue++
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
	if late {
		d.failedLocked(sentAt, now, c, ErrLate)
		d.startRunLocked()
	}
}

// failedLocked notes that a call failed that was sent at a time. It may open the breaker.
func (d *Dispatcher) failedLocked(sentAt, now time.Time, c *Call, err error) {
	d.healthy = false
	if d.closed || !d.breaker.failed(sentAt, now) {
		return
	}
	d.failQueueLocked(ErrOpen)
	if d.probing {
		select {
		case d.reopened <- err:
		default:
		}
		return
	}
	d.probing = true
	peek := c.peek()
	d.ended.Go(func() { newProber(d, peek).run(err) })
}

// countLocked counts a transition of the breaker.
func (d *Dispatcher) countLocked(to breakerState, reason string) {
	if d.stats.Transitions == nil {
		d.stats.Transitions = map[Transition]uint64{}
	}
	d.stats.Transitions[Transition{to.String(), reason}]++
}

// release gives a slot back, and has a goroutine send what waits. It is deferred: a hook of the
// client may end the goroutine that has the slot.
func (d *Dispatcher) release(b *Batch) {
	d.mu.Lock()
	if b.overdue {
		d.overdue--
	} else {
		d.inFlight = slices.DeleteFunc(d.inFlight, func(other *Batch) bool { return other == b })
	}
	d.spare.Put(b)
	d.startRunLocked()
	d.mu.Unlock()
	d.ended.Done()
}

// Close fails what waits, and returns when nothing is in flight and nothing of the prober runs, or
// after closeTimeout. A call that hangs in the client ends with the client's own timeouts. A ping
// may go on, for as long as the application's Dialer, or go-redis' own for TLS, takes to connect
// after its context has ended.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	d.closed = true
	d.stop()
	d.failQueueLocked(ErrClosed)
	d.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		d.ended.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(max(closeTimeout, d.timeout.span)):
	}
	d.timeout.end()
	d.sending.end()
}

// failQueueLocked ends all queued calls with an error.
func (d *Dispatcher) failQueueLocked(err error) {
	for _, c := range d.queue {
		if c.progress == queued {
			c.answer(err)
		}
	}
	d.queue, d.abandoned = nil, 0
}

// Idle reports whether nothing waits and nothing is in flight.
func (d *Dispatcher) Idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.idleLocked()
}

func (d *Dispatcher) idleLocked() bool {
	return len(d.queue)+len(d.inFlight)+d.overdue == 0 && !d.probing
}

// Retire ends the dispatcher if it is idle, and returns its last figures. A caller that was about
// to call Do gets [ErrRetired], and nothing is sent: another dispatcher is to do its call.
func (d *Dispatcher) Retire() (last Stats, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.idleLocked() {
		return Stats{}, false
	}
	d.retired = true
	d.stop()
	return Stats{Batches: d.stats.Batches, Calls: d.stats.Calls, Transitions: d.stats.Transitions}, true
}

// Stats returns the figures of now.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Stats{Batches: d.stats.Batches, Calls: d.stats.Calls, Transitions: maps.Clone(d.stats.Transitions)}
	if !d.closed {
		s.InFlight, s.Queued = len(d.inFlight)+d.overdue, len(d.queue)-d.abandoned
		s.Open = d.breaker.state == open
	}
	return s
}
