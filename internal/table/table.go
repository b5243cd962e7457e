// Package table keeps a bounded number of entries by the hashes of their keys. It never knows what they are.
package table

import (
	"math/bits"
	"sync/atomic"
)

// Ways is how many places a key has.
const Ways = 4

// Table is a table of fixed size. Each key has a few places in it, which are read and written without a lock.
// It has no memory until Grow is called.
type Table[E any] struct {
	sets int // a power of two
	all  atomic.Pointer[[]Place[E]]
}

// Place has an entry, or nil.
type Place[E any] = atomic.Pointer[E]

// New returns a table of at least the given number of entries, which is positive.
func New[E any](entries int) Table[E] { return Table[E]{sets: 1 << bits.Len(uint((entries-1)/Ways))} }

// Places returns the places for a hash, or nil before Grow.
func (t *Table[E]) Places(hash uint64) []Place[E] {
	all := t.all.Load()
	if all == nil {
		return nil
	}
	i := int(hash&uint64(t.sets-1)) * Ways
	return (*all)[i : i+Ways]
}

// All returns all places, or nil before Grow.
func (t *Table[E]) All() []Place[E] {
	if all := t.all.Load(); all != nil {
		return *all
	}
	return nil
}

// Grow allocates the table, once.
func (t *Table[E]) Grow() {
	if t.all.Load() == nil {
		all := make([]Place[E], t.sets*Ways)
		t.all.CompareAndSwap(nil, &all)
	}
}

// Choose returns one of the places, for a new entry, and what it has: the first that has nothing or the same key's
// entry, else the entry that was used least lately. An entry that is kept is not chosen; if all are, there is no
// place.
func Choose[E any](places []Place[E], same func(*E) bool, used func(*E) (at int64, kept bool)) (
	place *Place[E], old *E) {
	var oldest int64
	for i := range places {
		e := places[i].Load()
		if e == nil || same(e) {
			return &places[i], e
		}
		if at, kept := used(e); !kept && (place == nil || at < oldest) {
			place, old, oldest = &places[i], e, at
		}
	}
	return place, old
}
