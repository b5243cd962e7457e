package ginlimit

import "time"

// batch is what travels together, kept for its memory.
type batch struct {
	asks     []*ask
	errands  []*errand
	newest   map[uint64]*errand // by the hash of a key: the errand that a further ask may join
	commands []*command

	since time.Time // it took its asks
	stuck bool      // it was late and has no place

	spareErrands  []*errand
	spareCommands []*command
}

func newBatch() *batch { return &batch{newest: map[uint64]*errand{}} }

// failure returns the error that says that Redis is not there for anybody, and nil if it replied.
func (b *batch) failure() error {
	if err := b.errands[0].err; err != nil && !isReply(err) {
		return err
	}
	return nil
}

func (b *batch) reset() {
	clear(b.asks)
	b.asks = b.asks[:0]
	clear(b.newest)
	for _, e := range b.errands {
		e.ask, e.last, e.err = nil, nil, nil
	}
	b.spareErrands = append(b.spareErrands, b.errands...)
	clear(b.errands)
	b.errands = b.errands[:0]
	b.forget()
}

// merge makes errands of the asks. An ask joins only the newest errand on its key, so that all that
// is done to one key happens in the order in which it was asked for.
func (b *batch) merge() {
	for _, a := range b.asks {
		var before *errand
		if len(b.asks) > 1 {
			before = b.newest[a.hash]
			if before != nil && before.joins(a) {
				before.last.next, before.last = a, a
				before.charges += a.charges
				continue
			}
		}
		var e *errand
		if n := len(b.spareErrands); n > 0 {
			e, b.spareErrands = b.spareErrands[n-1], b.spareErrands[:n-1]
		} else {
			e = new(errand)
		}
		e.ask, e.last, e.charges, e.first, e.planned = a, a, a.charges, before == nil, false
		e.states = append(e.states[:0], a.states...)
		b.errands = append(b.errands, e)
		if len(b.asks) > 1 {
			b.newest[a.hash] = e
		}
	}
}

// errand is a part of a batch: an ask, or several that are merged.
type errand struct {
	*ask            // the first one, and what they have in common
	last    *ask    // the end of the list that begins with the first one
	charges int64   // of all of them
	first   bool    // on its key in this batch
	planned bool    // a command is to do it
	states  []state // found
	err     error
}

// joins reports whether a takes from the same buckets by charges of the same n.
func (e *errand) joins(a *ask) bool {
	takes := e.op == opDecide && a.op == opDecide && e.charges > 0 && a.charges > 0 && len(e.others)+len(a.others) == 0
	return takes && e.n == a.n && e.charges <= maxUnits-a.charges && e.sameKey(a) && sameLimits(e.buckets, a.buckets)
}

// share answers the asks of an errand, each as if those before it had been asked alone.
func (e *errand) share(sent, received time.Time) {
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
		copy(a.states, e.states)
		a.sent, a.received = sent, received
		if next != nil {
			granted := a.charges
			for i := range a.buckets {
				granted = a.buckets[i].fit(e.states[i].level, granted, a.n)
			}
			if granted > 0 {
				for i := range a.buckets {
					e.states[i] = a.buckets[i].charged(e.states[i], granted, a.n)
				}
			}
		}
		a.answer(nil)
		a = next
	}
}
