package ginlimit

import (
	"bytes"
	"context"
	"hash/maphash"
	"time"
)

// ask is one thing that a store is to do with the buckets of a key.
type ask struct {
	op      askOp
	key     []byte // fit for a slot tag
	others  []otherKey
	hash    uint64 // of the key
	buckets []bucket
	charges int64   // to decide: above 0 take as many as fit, 0 look, below 0 give back
	n       int64   // tokens of a charge
	states  []state // found; to block: the levels to raise buckets to
	block   time.Duration

	names []keyName  // the buckets' keys in Redis
	told  *standings // what the client is told of, for its caller alone; nil if nothing

	sent, received time.Time // when Redis was asked, at the earliest, and had answered, at the latest

	// What the dispatcher keeps of it.
	done  chan struct{}
	ends  [2]context.Context // when its caller leaves: its own, and the timeout
	err   error
	next  *ask
	state askState
	left  bool // the caller left before it was answered, so it is not used again
}

// otherKey is a further key of an ask, from one of its buckets on.
type otherKey struct {
	key  []byte
	from int
}

// keyOf returns the key of a bucket.
func (a *ask) keyOf(bucket int) []byte {
	key := a.key
	for _, other := range a.others {
		if other.from <= bucket {
			key = other.key
		}
	}
	return key
}

// askOp is what is to be done.
type askOp uint8

const (
	opDecide askOp = iota
	opBlock        // raise the buckets, none of them falls
	opReset        // fill the buckets up
)

// askState is how far an ask has come.
type askState uint8

const (
	askQueued askState = iota
	askSent
	askAbandoned // by its caller, while it waits
	askDropped   // not sent, as its caller cannot hear of it
)

// keySeed makes the hashes of keys.
var keySeed = maphash.MakeSeed()

// ask returns an ask about one token for the rules' buckets, without a key yet.
func (l *Limiter) ask(op askOp, r *rules) *ask {
	a, ok := l.asks.Get().(*ask)
	if !ok {
		a = &ask{done: make(chan struct{}, 1), names: make([]keyName, 1), states: make([]state, 1)}
	}
	a.op, a.buckets, a.charges, a.n, a.told = op, r.buckets, 0, 1, nil
	a.key, a.others, a.state = a.key[:0], a.others[:0], askQueued
	if n := len(r.buckets); n <= cap(a.states) {
		a.states, a.names = a.states[:n], a.names[:n]
	} else {
		a.states, a.names = make([]state, n), make([]keyName, n)
	}
	return a
}

// about sets an ask's key: [Key](name, key), or key where there is no name.
func (l *Limiter) about(a *ask, name, key string) {
	a.key = appendSlotText(a.key[:0], name, key, l.macs)
	a.hash = maphash.Bytes(keySeed, a.key)
}

// look returns an ask that looks at the same buckets and takes nothing.
func (a *ask) look() *ask {
	look := &ask{
		op: opDecide, key: bytes.Clone(a.key), hash: a.hash, buckets: a.buckets, n: 1,
		states: make([]state, len(a.buckets)), names: make([]keyName, len(a.names)), done: make(chan struct{}, 1),
	}
	for i, name := range a.names {
		look.names[i] = bytes.Clone(name)
	}
	return look
}

// release gives an ask back for another use.
func (l *Limiter) release(a *ask) {
	a.told = nil
	if !a.left {
		a.ends = [2]context.Context{}
		l.asks.Put(a)
	}
}

// sameKey reports whether two asks are about one key.
func (a *ask) sameKey(other *ask) bool {
	return a.hash == other.hash && bytes.Equal(a.key, other.key)
}

// sameLimits reports whether two lists of buckets are of the same limits.
func sameLimits(a, b []bucket) bool {
	if len(a) != len(b) {
		return false
	}
	if &a[0] == &b[0] { // of one handler
		return true
	}
	for i := range a {
		if a[i].limit != b[i].limit || a[i].algorithm != b[i].algorithm {
			return false
		}
	}
	return true
}

// answer hands the outcome to the caller, to whom the ask belongs again from here on.
func (a *ask) answer(err error) {
	a.next, a.err = nil, err
	a.done <- struct{}{}
}
