package top

import (
	"hash/maphash"
	"strings"
)

const (
	// counters is how many clients are counted of each policy. One with more than 1/counters of what is counted is
	// always among them.
	counters = 100
	cells    = 256 // of a sketch's filter, a power of two
	maxKey   = 256 // bytes of a key that is kept as it is
)

// sketch counts denials or tokens of clients in bounded memory. It is Space-Saving (Metwally, Agrawal and El Abbadi,
// 2005) with the filter of Homem and Carvalho (2010): a new client takes the place of the client with the
// smallest count only when it may have at least as many.
//
// Three things always hold, for any sequence of clients:
//
//	count - err <= the client's true number <= count, of each counter
//	the true number of a client without a counter <= its cell <= the smallest count
//	the sum of all counts <= all that was counted
//
// By the last two, a client without a counter has at most 1/counters of all.
type sketch struct {
	heap    []*counter      // the smallest count first
	heads   [cells]*counter // of lists by the hash of the key
	filter  [cells]int64    // by the hash of the key
	storage [counters]counter
}

// counter is one client's.
type counter struct {
	key        string
	hashed     bool // the key is the hash of a longer one: no client can write the hash of another
	hash       uint64
	next       *counter // in its list
	place      int      // in the heap
	count, err int64
}

// seed makes the hashes of keys: nobody outside can choose keys that meet.
var seed = maphash.MakeSeed()

// add counts n, at least 1, of a client.
func (s *sketch) add(key string, hashed bool, n int64) {
	hash := maphash.String(seed, key)
	c := s.heads[hash%cells]
	for c != nil && (c.hash != hash || c.hashed != hashed || c.key != key) {
		c = c.next
	}
	switch cell := &s.filter[hash%cells]; {
	case c != nil:
		c.count += n
	case len(s.heap) < counters:
		c = &s.storage[len(s.heap)]
		c.place, c.count = len(s.heap), n
		s.heap = append(s.heap, c)
		s.index(c, key, hashed, hash)
		s.up(c)
		return
	case *cell+n <= s.heap[0].count:
		*cell += n
		return
	default:
		c = s.heap[0]
		known := *cell
		s.filter[c.hash%cells] = c.count
		before := &s.heads[c.hash%cells]
		for *before != c {
			before = &(*before).next
		}
		*before = c.next
		c.count, c.err = known+n, known
		s.index(c, key, hashed, hash)
	}
	s.down(c)
}

// index gives a counter to a client.
func (s *sketch) index(c *counter, key string, hashed bool, hash uint64) {
	c.key, c.hashed, c.hash = strings.Clone(key), hashed, hash // the key may be a part of a large request
	c.next = s.heads[hash%cells]
	s.heads[hash%cells] = c
}

// up moves a counter to its place if its count may be smaller than before.
func (s *sketch) up(c *counter) {
	for c.place > 0 {
		parent := s.heap[(c.place-1)/2]
		if parent.count <= c.count {
			return
		}
		s.swap(c, parent)
	}
}

// down moves a counter to its place if its count may be larger than before.
func (s *sketch) down(c *counter) {
	for {
		child := 2*c.place + 1
		if child >= len(s.heap) {
			return
		}
		if child+1 < len(s.heap) && s.heap[child+1].count < s.heap[child].count {
			child++
		}
		if c.count <= s.heap[child].count {
			return
		}
		s.swap(c, s.heap[child])
	}
}

func (s *sketch) swap(a, b *counter) {
	s.heap[a.place], s.heap[b.place] = b, a
	a.place, b.place = b.place, a.place
}

// rest returns a bound on what was counted of each client that has no counter.
func (s *sketch) rest() (most int64) {
	for _, n := range s.filter {
		most = max(most, n)
	}
	return most
}
