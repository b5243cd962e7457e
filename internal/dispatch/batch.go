package dispatch

import (
	"context"
	"strconv"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// Batch is what travels together. It belongs to the goroutine that sends it, but for since and
// overdue, which are the dispatcher's, behind its lock. Its memory is used again.
type Batch struct {
	Groups []*Group // in the order in which they were asked for

	ctx           *Borrowed  // of the transport, with the values of one caller: that of the first call
	spareContexts []Borrowed // contexts of further batches
	calls         []*Call
	newest        map[uint64]*Group // by the hash of a key: the merged call that a further one may join
	spare         []*Group

	urgent  bool      // it has a Return, which must not be done late
	since   time.Time // it took its calls
	overdue bool      // it was late and has no slot
}

// Group is a call for one or several Calls on the same buckets.
type Group struct {
	*Call                  // the first of them, and what they have in common
	Charges int64          // of all of them
	First   bool           // on its key in this batch
	Found   []bucket.State // as the transport has found them, before the first of them
	Err     error          // why it was not done, as the transport says
	last    *Call          // the end of the list that begins with the first
}

func newBatch() *Batch { return &Batch{newest: map[uint64]*Group{}} }

// contextsAtOnce is how many contexts are allocated at once.
const contextsAtOnce = 16

// borrow gives the batch a context with the values of the caller of its first call. No context is
// used for two batches, because a hook of the client may keep it.
func (b *Batch) borrow(caller context.Context) {
	if len(b.spareContexts) == 0 {
		b.spareContexts = make([]Borrowed, contextsAtOnce)
	}
	b.ctx, b.spareContexts = &b.spareContexts[0], b.spareContexts[1:]
	b.ctx.caller, b.calls[0].borrowed = caller, b.ctx
}

func (b *Batch) reset() {
	b.ctx = nil
	clear(b.calls)
	b.calls = b.calls[:0]
	clear(b.newest)
	for _, m := range b.Groups {
		m.Call, m.last, m.Err = nil, nil, nil
	}
	b.spare = append(b.spare, b.Groups...)
	b.Groups = b.Groups[:0]
}

// coalesce merges the calls that can be. A call joins only the newest one on its key, so that all
// that is done to one key happens in the order in which it was asked for.
func (b *Batch) coalesce() {
	b.urgent = false
	for _, c := range b.calls {
		b.urgent = b.urgent || c.Op.Verb == bucket.Return
		var before *Group
		if len(b.calls) > 1 {
			before = b.newest[c.Hash]
			if before != nil && before.joins(c) {
				before.last.next, before.last = c, c
				before.Charges += c.Op.Charges
				continue
			}
		}
		var m *Group
		if n := len(b.spare); n > 0 {
			m, b.spare = b.spare[n-1], b.spare[:n-1]
		} else {
			m = new(Group)
		}
		m.Call, m.last, m.Charges, m.First = c, c, c.Op.Charges, before == nil
		m.Found = append(m.Found[:0], c.States...)
		b.Groups = append(b.Groups, m)
		if len(b.calls) > 1 {
			b.newest[c.Hash] = m
		}
	}
}

// joins reports whether c takes from the same buckets by charges of the same size.
func (m *Group) joins(c *Call) bool {
	op := m.Op
	op.Charges = m.Charges
	return op.Merges(c.Op) && len(m.Others)+len(c.Others) == 0 && m.sameKey(c) && bucket.Same(m.Buckets, c.Buckets)
}

// Attempts returns what is settled of the slots that this process holds, as the newest of the calls
// tells it, and the numbers of their attempts, each followed by a comma.
func (m *Group) Attempts() (newest bucket.Attempt, numbers string) {
	var text []byte
	for c := m.Call; c != nil; c = c.next {
		if c.Attempt.Number >= newest.Number {
			newest = c.Attempt
		}
		if c.Attempt.Number > 0 {
			text = append(strconv.AppendInt(text, c.Attempt.Number, 10), ',')
		}
	}
	return newest, string(text)
}

// distribute answers the calls, each as if those before it had been asked alone.
func (m *Group) distribute(sent, received time.Time) {
	for c := m.Call; c != nil; {
		next := c.next
		if m.Err == nil {
			copy(c.States, m.Found)
			c.Sent, c.Received = sent, received
			if next != nil {
				m.charge(c)
			}
		}
		c.answer(m.Err)
		c = next
	}
}

// charge has the states be those after a call.
func (m *Group) charge(c *Call) {
	granted := c.Op.Charges
	for i := range c.Buckets {
		granted = c.Buckets[i].Fit(m.Found[i].Level, granted, c.Op.N)
	}
	if granted == 0 {
		return
	}
	for i := range c.Buckets {
		m.Found[i] = c.Buckets[i].Charged(m.Found[i], granted, c.Op.N)
	}
}
