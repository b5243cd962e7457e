package dispatch

import (
	"slices"
	"strconv"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// Batch is the calls that are sent together. It belongs to the goroutine that sends it, except for
// since and overdue, which Dispatcher.mu guards. Its memory is used again.
type Batch struct {
	Groups []*Group // in the order of their first calls; those behind the last one are used again

	ctx           *goroutine.Borrowed  // of the transport, with the values of the first call's caller
	spareContexts []goroutine.Borrowed // contexts of further batches
	calls         []*Call
	newest        map[uint64]*Group // by the hash of a key: the group that a further call may join

	urgent  bool      // it has a Return, which must not be done late
	since   time.Time // when it took its calls, or was answered last
	overdue bool      // it was late and has no slot

	inline   bool      // the caller of its only call sends it
	deadline *deadline // of ctx
	err      error     // of the transport
}

// Group is one or several calls on the same buckets, which Redis decides at once.
type Group struct {
	*Call                  // the first call, with what all calls have in common
	Charges int64          // of all calls
	First   bool           // on its key in this batch
	Found   []bucket.State // before the first call, as the transport found them
	Err     error          // of the transport, if the group was not decided
	last    *Call          // the end of the list that begins with the first call
	tenants tenants        // of the calls, if the buckets are shared
}

func newBatch() *Batch { return &Batch{newest: map[uint64]*Group{}} }

// contextsAtOnce is how many contexts are allocated at once.
const contextsAtOnce = 16

// borrow gives the batch a context with the values of the caller of its first call. No context is
// used for two batches, because a hook of the client may keep it.
func (b *Batch) borrow(stuck *goroutine.Stuck) {
	if len(b.spareContexts) == 0 {
		b.spareContexts = make([]goroutine.Borrowed, contextsAtOnce)
	}
	b.ctx, b.spareContexts = &b.spareContexts[0], b.spareContexts[1:]
	caller := &b.calls[0].caller
	b.ctx.BorrowFrom(caller.ctx, stuck)
	caller.borrowed = b.ctx
}

func (b *Batch) reset() {
	b.ctx, b.deadline, b.inline = nil, nil, false
	clear(b.calls)
	b.calls = b.calls[:0]
	clear(b.newest)
	for _, g := range b.Groups {
		g.Call, g.last, g.Err = nil, nil, nil
		if len(g.tenants.all) > 0 {
			g.tenants.reset()
		}
	}
	b.Groups = b.Groups[:0]
}

// coalesce makes groups of the calls. A call joins only the newest group on its key, so that Redis
// decides the calls on one key in their order. Of calls on several keys that is their first key.
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
		g := b.add()
		g.Call, g.last, g.Charges, g.First = c, c, c.Op.Charges, before == nil
		g.Found = append(g.Found[:0], c.States...)
		if c.Op.Tenant.Name != "" {
			g.tenants.begin(c)
		}
		if len(b.calls) > 1 {
			b.newest[c.Hash] = g
		}
	}
}

// add adds a group.
func (b *Batch) add() *Group {
	n := len(b.Groups)
	b.Groups = slices.Grow(b.Groups, 1)[:n+1]
	if b.Groups[n] == nil {
		b.Groups[n] = new(Group)
	}
	return b.Groups[n]
}

// joins reports whether c may join the group: it takes from the same buckets of the same keys by
// charges of the same size.
func (g *Group) joins(c *Call) bool {
	op := g.Op
	op.Charges = g.Charges
	return op.Merges(c.Op) && g.sameKeys(c) && bucket.Same(g.Buckets, c.Buckets) && g.admits(c)
}

// Attempts returns the newest attempt of the calls to take a slot of a bucket, which has the newest
// report of the slots that this process holds, and the numbers of all their attempts, each followed
// by a comma.
func (g *Group) Attempts(i int) (newest bucket.Attempt, numbers string) {
	var text []byte
	for c := g.Call; c != nil; c = c.next {
		attempt := c.of(i).Attempt
		if attempt.Number >= newest.Number {
			newest = attempt
		}
		if attempt.Number > 0 {
			text = append(strconv.AppendInt(text, attempt.Number, 10), ',')
		}
	}
	return newest, string(text)
}

// distribute answers the calls, each with the states that it would have found alone.
func (g *Group) distribute(sent, received time.Time) {
	for c := g.Call; c != nil; {
		next := c.next
		if g.Err == nil {
			if len(g.tenants.found) > 0 {
				g.tenants.choose(g, c)
			}
			copy(c.States, g.Found)
			c.Sent, c.Received = sent, received
			if next != nil {
				g.charge(c)
			}
		}
		c.next = nil
		c.caller.answer(g.Err)
		c = next
	}
}

// charge changes the states to those after a call.
func (g *Group) charge(c *Call) {
	granted := c.Op.Charges
	for i := range c.Buckets {
		granted = c.Buckets[i].Fits(g.Found[i], granted, c.Op.Tokens(i))
	}
	if granted == 0 {
		return
	}
	for i := range c.Buckets {
		g.Found[i] = c.Buckets[i].Charged(g.Found[i], granted, c.Op.Tokens(i))
	}
	if len(g.tenants.found) > 0 {
		g.tenants.changed(g, c)
	}
}
