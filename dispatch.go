package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// batchesInFlight is how many batches may be on their way to Redis at a time.
	batchesInFlight = 2
	// batchAsks is how many decisions travel in one batch.
	batchAsks = 1024
	// batchPatience is how long a batch may take, where the client's own timeouts are longer.
	batchPatience = 5 * time.Second
	// queueAsks is how many decisions may wait for a batch; further ones are refused as unavailable.
	queueAsks = 1 << 14
)

// dispatcher carries decisions to Redis in batches.
//
// A decision that finds a free place goes at once, alone. Those that come while all places are taken
// gather, and leave as one pipeline when a place is free again. In a batch, decisions to take from the
// same buckets become one call of the script for all of them, which is shared out in the order in
// which they came: each gets the levels that it would have found in single file.
//
// A caller waits no longer than its context. One that leaves before its batch does costs nothing; one
// that leaves later may have been charged, like a request whose answer is lost.
//
// Batches are sent by goroutines that end when nothing waits. On a cluster nothing travels together.
type dispatcher struct {
	send func(context.Context, []*errand)

	spare sync.Pool // of *batch

	mu      sync.Mutex
	waiting []*ask
	batches int // in flight
	closed  bool
	ended   sync.WaitGroup // the batches in flight
}

// errand is one command of a batch: an ask, or several that are merged.
type errand struct {
	*ask            // the first one, and what they have in common
	last    *ask    // the end of the list that begins with the first one
	charges int64   // of all of them
	levels  []int64 // found
	err     error
	command command
}

// askState is how far an ask has come.
type askState uint8

const (
	askQueued askState = iota
	askSent
	askAbandoned
)

var errQueueFull = errors.New("too many decisions wait for Redis")

// decide has an ask answered, and returns early if the context ends.
func (d *dispatcher) decide(ctx context.Context, a *ask) error {
	d.mu.Lock()
	if len(d.waiting) == queueAsks {
		d.waiting = slices.DeleteFunc(d.waiting, func(a *ask) bool { return a.state == askAbandoned })
	}
	switch {
	case d.closed:
		d.mu.Unlock()
		return errLimiterClosed
	case len(d.waiting) == queueAsks:
		d.mu.Unlock()
		return errQueueFull
	}
	d.waiting = append(d.waiting, a)
	start := d.batches < batchesInFlight
	if start {
		d.batches++
		d.ended.Add(1)
	}
	d.mu.Unlock()
	if start {
		go d.run()
	}
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-a.done: // answered at the last moment
		return a.err
	default:
	}
	a.lost = true
	if a.state == askQueued {
		a.state = askAbandoned
	}
	return ctx.Err()
}

// close fails what waits and returns when nothing is in flight.
func (d *dispatcher) close() {
	d.mu.Lock()
	d.closed = true
	for _, a := range d.waiting {
		a.answer(errLimiterClosed)
	}
	d.waiting = nil
	d.mu.Unlock()
	d.ended.Wait()
}

// run sends batches until nothing waits.
func (d *dispatcher) run() {
	defer d.ended.Done()
	b, ok := d.spare.Get().(*batch)
	if !ok {
		b = &batch{newest: map[string]*errand{}}
	}
	defer d.spare.Put(b)
	for d.take(b) {
		b.merge()
		d.deliver(b)
	}
}

// take moves what waits into the batch, and ends the run where nothing does.
func (d *dispatcher) take(b *batch) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiting) == 0 {
		d.batches--
		return false
	}
	n := min(len(d.waiting), batchAsks)
	for _, a := range d.waiting[:n] {
		if a.state == askQueued {
			a.state = askSent
			b.asks = append(b.asks, a)
		}
	}
	left := copy(d.waiting, d.waiting[n:])
	clear(d.waiting[left:])
	d.waiting = d.waiting[:left]
	return true
}

// deliver sends a batch and answers everyone in it, even if a hook of the client panics.
func (d *dispatcher) deliver(b *batch) {
	sent := false
	defer func() {
		if p := recover(); !sent {
			err := fmt.Errorf("the Redis client panics: %v", p)
			for _, e := range b.errands {
				e.err = err
			}
		}
		for _, e := range b.errands {
			e.share()
		}
		b.reset()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), batchPatience)
	defer cancel()
	d.send(ctx, b.errands)
	sent = true
}

// batch is what travels together, kept for its memory.
type batch struct {
	asks    []*ask
	errands []*errand
	spare   []*errand
	newest  map[string]*errand // by key: the errand that a further ask may join
}

func (b *batch) reset() {
	clear(b.asks)
	b.asks = b.asks[:0]
	clear(b.newest)
	for _, e := range b.errands {
		e.ask, e.last, e.err = nil, nil, nil
	}
	b.spare = append(b.spare, b.errands...)
	b.errands = b.errands[:0]
}

// merge makes errands of the asks. An ask joins only the newest errand on its key, so that all that
// is done to one key happens in the order in which it was asked for.
func (b *batch) merge() {
	for _, a := range b.asks {
		if len(b.asks) > 1 {
			if e := b.newest[a.text]; e != nil && e.joins(a) {
				e.last.next, e.last = a, a
				e.charges += a.charges
				continue
			}
		}
		var e *errand
		if n := len(b.spare); n > 0 {
			e, b.spare = b.spare[n-1], b.spare[:n-1]
		} else {
			e = new(errand)
		}
		e.ask, e.last, e.charges = a, a, a.charges
		e.levels = append(e.levels[:0], a.levels...)
		b.errands = append(b.errands, e)
		if len(b.asks) > 1 {
			b.newest[a.text] = e
		}
	}
}

// joins reports whether a takes from the same buckets by charges of the same n.
func (e *errand) joins(a *ask) bool {
	takes := e.op == opDecide && a.op == opDecide && e.charges > 0 && a.charges > 0
	return takes && e.n == a.n && e.charges <= maxUnits-a.charges && sameLimits(e.buckets, a.buckets)
}

// share answers the asks of an errand, each as if those before it had been asked alone.
func (e *errand) share() {
	if e.err != nil {
		for a := e.ask; a != nil; {
			next := a.next
			a.answer(e.err)
			a = next
		}
		return
	}
	for a := e.ask; a != nil; {
		next := a.next
		copy(a.levels, e.levels)
		if next != nil {
			granted := a.charges
			for i := range a.buckets {
				granted = a.buckets[i].fit(e.levels[i], granted, a.n)
			}
			if granted > 0 {
				for i := range a.buckets {
					e.levels[i] += granted * a.buckets[i].charge(a.n)
				}
			}
		}
		a.answer(nil)
		a = next
	}
}

// answer hands the outcome to the caller, to whom the ask belongs again from here on.
func (a *ask) answer(err error) {
	a.next, a.err = nil, err
	a.done <- struct{}{}
}
