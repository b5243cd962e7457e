package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// batchesInFlight is how many batches may be on their way to Redis at a time, one if the last was not answered.
	batchesInFlight = 2
	// mostInFlight is how many may be where the way is long, so that few wait for another's answer to travel (see
	// placesFor). It is long if the last farBatches took farAway besides the work, which is about errandWork for each
	// errand. Where it is short, fewer and larger batches are less work.
	mostInFlight = 4
	farBatches   = 8
	farAway      = 400 * time.Microsecond
	errandWork   = 5 * time.Microsecond
	// moreStuck is how many more than may be in flight may be there that are late, and count no longer. Each may hold a
	// connection for as long as the client's own timeouts are. All that are in flight may become so at once, and then
	// one for each further failure until Redis is lost.
	moreStuck = lostFailures - 1
	// A batch takes its share of the decisions that wait, in between these numbers.
	leastAsks, mostAsks = 128, 1024
	// queueAsks is how many decisions may wait for a batch; further ones are refused as unavailable.
	queueAsks = 1 << 14
	// longestDirect is the longest timeout for which a caller sends its ask itself, since it then does not
	// look at the end of its context.
	longestDirect = 100 * time.Millisecond
)

// dispatcher carries decisions to Redis in batches.
//
// A decision that finds a free place goes at once, alone. Those that come while all places are taken
// gather, and leave as one pipeline when a place is free again. There are more places where the way to Redis is long,
// so that nobody waits for another's answer to travel. In a batch, decisions to take from the
// same buckets become one call of the script for all of them, which is shared out in the order in
// which they came: each gets the levels that it would have found in single file.
//
// A caller waits no longer than its context and the timeout. One that leaves before its batch does costs
// nothing; one that leaves later may have been charged, like a request whose answer is lost. A batch that is
// late gives up its place. Where Redis is lost, nobody waits (see breaker).
//
// Batches are sent by goroutines that end when nothing waits. Where the client is known to end a call with
// its context, the caller of a decision that goes alone sends it itself: handing it to another goroutine and
// back takes longer than Redis does.
type dispatcher struct {
	send   func(context.Context, *batch)
	direct bool // the client ends a call with its context
	places int  // how many batches may be in flight where the way is long

	timeout lease
	spare   sync.Pool // of *batch

	mu        sync.Mutex
	waiting   []*ask
	abandoned int      // of those that wait, their callers having left
	flying    []*batch // in flight, without those that are stuck
	far       int      // batches in a row for which the way was long
	stuck     int
	healthy   bool // the last batch was answered
	breaker   breaker
	batches   uint64 // sent
	decisions uint64 // in these
	closed    bool
	ended     sync.WaitGroup // the batches in flight, and the search for Redis

	connecting bool          // connections are being made
	connected  time.Time     // when that was last done
	looks      chan struct{} // those by which they are made, as many as may be at once
}

// placesFor returns how many batches may be in flight where the way is long, with a pool of so many connections; 0 is
// not known. Those that hang until the client ends them leave room for the probes.
func placesFor(pool int, direct bool) int {
	switch {
	case pool < 1:
		return batchesInFlight
	case !direct && pool < mostInFlight+moreStuck+probesOut:
		return min(batchesInFlight, pool)
	default:
		return min(mostInFlight, pool)
	}
}

func newDispatcher(timeout time.Duration, direct bool, server *server, send func(context.Context, *batch)) *dispatcher {
	places := placesFor(server.pool, direct)
	return &dispatcher{
		send: send, direct: direct, places: places, timeout: lease{span: timeout}, breaker: newBreaker(server),
		looks: make(chan struct{}, places),
	}
}

var (
	errQueueFull = errors.New("too many decisions wait for Redis")
	errLate      = errors.New("no answer from Redis in time")
)

// decide has an ask answered, and returns early if the context ends.
func (d *dispatcher) decide(ctx context.Context, a *ask) error {
	d.mu.Lock()
	if len(d.waiting) == queueAsks && d.abandoned >= queueAsks/4 {
		d.abandoned = 0
		d.waiting = slices.DeleteFunc(d.waiting, func(a *ask) bool { return a.state == askAbandoned })
	}
	switch {
	case d.closed:
		d.mu.Unlock()
		return errLimiterClosed
	case d.breaker.lost:
		d.mu.Unlock()
		return errLost
	case len(d.waiting) == queueAsks:
		d.mu.Unlock()
		return errQueueFull
	}
	if d.healthy && len(d.waiting) == 0 && len(d.flying) < d.nearPlaces() && d.mayGo(ctx) {
		b := d.startLocked()
		a.state = askSent
		d.mu.Unlock()
		return d.goWith(b, a)
	}
	if !d.hasPlaceLocked() {
		d.giveUpLocked(a)
		if d.breaker.lost {
			d.mu.Unlock()
			return errLost
		}
	}
	timeout := d.timeout.context()
	a.ends = [2]context.Context{ctx, timeout}
	d.waiting = append(d.waiting, a)
	d.startRunLocked()
	d.mu.Unlock()

	err := errLate
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout.Done():
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-a.done: // answered at the last moment
		return a.err
	default:
	}
	a.left = true
	if a.state == askQueued {
		a.state = askAbandoned
		d.abandoned++
	}
	d.giveUpLocked(a)
	return err
}

// mayGo reports whether a caller may go itself.
func (d *dispatcher) mayGo(ctx context.Context) bool {
	if !d.direct || ctx.Done() != nil && d.timeout.span > longestDirect {
		return false
	}
	deadline, ok := ctx.Deadline()
	return !ok || time.Until(deadline) > d.timeout.span+d.timeout.slack()
}

// hasPlaceLocked reports whether another batch may leave.
func (d *dispatcher) hasPlaceLocked() bool {
	switch n := len(d.flying); {
	case n == 0:
		return true
	case d.far >= farBatches:
		return d.healthy && n < d.places
	default:
		return d.healthy && n < d.nearPlaces()
	}
}

// nearPlaces is how many batches may be in flight where the way is short.
func (d *dispatcher) nearPlaces() int { return min(batchesInFlight, d.places) }

// startLocked takes a place.
func (d *dispatcher) startLocked() *batch {
	b, ok := d.spare.Get().(*batch)
	if !ok {
		b = newBatch()
	}
	b.stuck, b.since = false, time.Now()
	d.flying = append(d.flying, b)
	d.ended.Add(1)
	return b
}

// startRunLocked has a goroutine send what waits, if there is a place.
func (d *dispatcher) startRunLocked() {
	if len(d.waiting) > 0 && d.hasPlaceLocked() {
		go d.run(d.startLocked())
	}
}

// idle reports whether nothing waits and nothing is in flight.
func (d *dispatcher) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting)+len(d.flying)+d.stuck+len(d.looks) == 0 && !d.breaker.seeking
}

// giveUpLocked frees the places of batches that are late. Their asks are answered if they come back. The ask is
// one that has not been answered.
func (d *dispatcher) giveUpLocked(a *ask) {
	now := time.Now()
	late := false
	d.flying = slices.DeleteFunc(d.flying, func(b *batch) bool {
		if now.Sub(b.since) < d.timeout.span {
			return false
		}
		late = true
		b.stuck = d.stuck < d.places+moreStuck
		if b.stuck {
			d.stuck++
		}
		return b.stuck
	})
	if late {
		d.failedLocked(now, a, errLate)
		d.startRunLocked()
	}
}

// land gives a place back, and has a goroutine send what has gathered, be it that a hook of the client ends
// this one.
func (d *dispatcher) land(b *batch) {
	d.mu.Lock()
	if b.stuck {
		d.stuck--
	} else {
		d.flying = slices.DeleteFunc(d.flying, func(other *batch) bool { return other == b })
	}
	d.spare.Put(b)
	d.startRunLocked()
	d.mu.Unlock()
	d.ended.Done()
}

// goWith sends an ask alone.
func (d *dispatcher) goWith(b *batch, a *ask) error {
	a.left = true // until it is answered here
	defer d.land(b)
	b.asks = append(b.asks, a)
	b.merge()
	d.deliver(b)
	<-a.done
	a.left = false
	return a.err
}

// close fails what waits and returns when nothing is in flight.
func (d *dispatcher) close() {
	d.mu.Lock()
	d.closed = true
	d.breaker.stop()
	d.failWaitingLocked(errLimiterClosed)
	d.mu.Unlock()
	d.ended.Wait()
	d.timeout.end()
}

// failWaitingLocked gives everyone who waits an error.
func (d *dispatcher) failWaitingLocked(err error) {
	for _, a := range d.waiting {
		if a.state == askQueued {
			a.answer(err)
		}
	}
	d.waiting, d.abandoned = nil, 0
}

// run sends batches until nothing waits.
func (d *dispatcher) run(b *batch) {
	defer d.land(b)
	runtime.Gosched() // those who ask at the same moment leave together
	for d.take(b) {
		b.merge()
		d.deliver(b)
		// Those who have just been answered, and ask again, do so before the next batch leaves. It costs no
		// time where nothing else is to be run.
		runtime.Gosched()
	}
}

// take moves a batch of what waits into b, and reports whether there is any, and still a place for it.
func (d *dispatcher) take(b *batch) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.flying) > d.nearPlaces() && d.far < farBatches {
		return false // the way is short again
	}
	for len(b.asks) == 0 && len(d.waiting) > 0 && !b.stuck {
		n := min(len(d.waiting), max(leastAsks, len(d.waiting)/batchesInFlight), mostAsks)
		for _, a := range d.waiting[:n] {
			switch {
			case a.state == askAbandoned:
				d.abandoned--
				continue
			case a.ends[0].Err() != nil || a.ends[1].Err() != nil: // its caller is about to leave
				a.state = askDropped
				continue
			}
			a.state = askSent
			b.asks = append(b.asks, a)
		}
		left := copy(d.waiting, d.waiting[n:])
		clear(d.waiting[left:])
		d.waiting = d.waiting[:left]
	}
	b.since = time.Now()
	return len(b.asks) > 0
}

// deliver sends a batch and answers everyone in it, even if a hook of the client panics or ends the
// goroutine. On a cluster and a ring go-redis runs the hooks of a pipeline in goroutines of its own, where
// nobody can help.
func (d *dispatcher) deliver(b *batch) {
	sent := b.since
	defer func() {
		received := time.Now()
		err := b.failure()
		if err == nil && received.Sub(sent) >= d.timeout.span {
			err = errLate
		}
		var unanswered *ask
		if err != nil {
			unanswered = b.errands[0].look()
		}
		for _, e := range b.errands {
			e.share(sent, received)
		}
		far := received.Sub(sent) > farAway+time.Duration(len(b.errands))*errandWork
		decisions := uint64(len(b.asks))
		b.reset()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.batches++
		d.decisions += decisions
		b.since = received // it is late no more
		switch {
		case b.stuck: // it has counted when it gave up its place
		case err != nil:
			d.failedLocked(received, unanswered, err)
		default:
			if d.far++; !far {
				d.far = 0
			}
			d.answeredLocked()
		}
	}()
	d.ship(d.timeout.context(), b)
}

// ship has a batch sent, and gives its errands an error if that does not return.
func (d *dispatcher) ship(ctx context.Context, b *batch) {
	done := false
	defer func() {
		if p := recover(); !done {
			err := fmt.Errorf("the Redis client panics: %v", p)
			for _, e := range b.errands {
				e.err = err
			}
		}
	}()
	d.send(ctx, b)
	done = true
}
