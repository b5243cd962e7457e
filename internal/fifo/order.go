package fifo

import (
	"math/rand/v2"
	"time"
)

// order is turns in order of arrival, and those of the same time in the order in which they were added. It is a
// treap: each call takes a time that grows with the logarithm of their number.
type order struct{ root *Turn }

// node is a turn's place in an order.
type node struct {
	before, after *Turn // subtrees
	priority      uint32
	number        uint64 // a later turn of its queue has a larger one
	callers       int    // of the subtree
	wants         int64  // of the subtree
}

// below returns how many turns there are in a subtree, and what they want.
func (t *Turn) below() (callers int, wants int64) {
	if t == nil {
		return 0, 0
	}
	return t.node.callers, t.node.wants
}

// sum sums up a subtree.
func (t *Turn) sum() {
	callers, wants := t.before.below()
	after, wanted := t.after.below()
	t.node.callers, t.node.wants = callers+after+1, wants+wanted+t.wants
}

// precedes reports whether a turn comes before another one.
func (t *Turn) precedes(other *Turn) bool {
	return t.since.Before(other.since) || t.since.Equal(other.since) && t.number < other.number
}

// add adds a turn.
func (o *order) add(t *Turn) {
	t.priority = rand.Uint32()
	o.root = insert(o.root, t)
}

func insert(root, t *Turn) *Turn {
	switch {
	case root == nil || t.priority > root.priority:
		t.before, t.after = split(root, t)
		root = t
	case t.precedes(root):
		root.before = insert(root.before, t)
	default:
		root.after = insert(root.after, t)
	}
	root.sum()
	return root
}

// split divides a subtree into what precedes a turn, and the others.
func split(root, t *Turn) (before, after *Turn) {
	switch {
	case root == nil:
		return nil, nil
	case root.precedes(t):
		root.after, after = split(root.after, t)
		before = root
	default:
		before, root.before = split(root.before, t)
		after = root
	}
	root.sum()
	return before, after
}

// remove removes a turn, which is among them.
func (o *order) remove(t *Turn) {
	o.root = without(o.root, t)
	t.before, t.after = nil, nil
}

func without(root, t *Turn) *Turn {
	switch {
	case root == t:
		return join(t.before, t.after)
	case t.precedes(root):
		root.before = without(root.before, t)
	default:
		root.after = without(root.after, t)
	}
	root.sum()
	return root
}

// join makes one subtree of two, of which the first precedes the second.
func join(first, second *Turn) *Turn {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	case first.priority > second.priority:
		first.after = join(first.after, second)
		first.sum()
		return first
	}
	second.before = join(first, second.before)
	second.sum()
	return second
}

// first returns the first turn, or nil if there is none.
func (o *order) first() (t *Turn) {
	for at := o.root; at != nil; at = at.before {
		t = at
	}
	return t
}

// until returns how many turns arrived by a time, and what they want.
func (o *order) until(at time.Time) (callers int, wants int64) {
	for t := o.root; t != nil; {
		if at.Before(t.since) {
			t = t.before
			continue
		}
		earlier, wanted := t.before.below()
		callers, wants = callers+earlier+1, wants+wanted+t.wants
		t = t.after
	}
	return callers, wants
}
