package dispatch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// Call is one Op on the buckets of a key, on its way to a server and back.
//
// It belongs to its caller until [Dispatcher.Do], and again when that returns, unless
// [Call.Abandoned]: then the dispatcher may still answer it, so it is only read and not used again.
// In between it belongs to the dispatcher: to its queue, then to one batch. Its owner may change it
// without a lock, except for progress, which Dispatcher.mu guards, and caller.abandoned.
type Call struct {
	Op      bucket.Op
	Key     []byte          // fit for a hash tag
	Others  []OtherKey      // further keys, which share the call's decision (see AddKey); its own
	Hash    uint64          // of Key
	Buckets []bucket.Bucket // nobody changes them while the call may be answered
	Layout  *bucket.Layout  // of the buckets
	Attempt bucket.Attempt  // to take a slot, if a bucket has slots
	States  []bucket.State  // found of each bucket, once the call is answered; of a Charge and a Return, as they are left
	Names   []Name          // what each bucket is called by the store; its own

	Sent, Received time.Time // the earliest time of the request, and the latest of the answer

	caller   caller
	next     *Call // in its Group
	tenant   int   // its index in its Group, if there are tenants
	progress progress
}

// OtherKey is the key of a call's buckets from one on, up to the next OtherKey's.
type OtherKey struct {
	Key     []byte
	Hash    uint64
	From    int
	Attempt bucket.Attempt // to take a slot, if a bucket has slots
}

// Name is a bucket's key in Redis. Its memory is used again for other calls.
type Name []byte

// MarshalBinary implements [encoding.BinaryMarshaler], by which go-redis writes it without a copy.
func (n *Name) MarshalBinary() ([]byte, error) { return *n, nil }

// String implements [fmt.Stringer], by which a cluster client finds its slot.
func (n *Name) String() string { return string(*n) }

// progress is how far a call has come.
type progress uint8

const (
	queued progress = iota
	left            // its caller left while it was queued, or was about to leave when its batch was filled
	taken           // from the queue into a batch, which answers it
)

// NewCall returns a call without a key, for [Call.Set].
func NewCall() *Call { return &Call{caller: caller{done: make(chan struct{}, 1)}} }

// Set sets what the call does to which buckets.
func (c *Call) Set(op bucket.Op, buckets []bucket.Bucket, layout *bucket.Layout) {
	c.Op, c.Buckets, c.Layout = op, buckets, layout
	n := len(buckets)
	c.States, c.Names = slices.Grow(c.States[:0], n)[:n], slices.Grow(c.Names[:0], n)[:n]
}

// AddKey adds the key of another call, with its attempt, for the buckets from one on. It is copied,
// into memory that is used again.
func (c *Call) AddKey(of *Call, from int) {
	n := len(c.Others)
	c.Others = slices.Grow(c.Others, 1)[:n+1]
	c.Others[n] = OtherKey{append(c.Others[n].Key[:0], of.Key...), of.Hash, from, of.Attempt}
}

// Abandoned reports whether [Dispatcher.Do] has returned without an answer that may still come.
func (c *Call) Abandoned() bool { return c.caller.abandoned }

// InFlight reports whether an abandoned call was sent, so that it is answered.
func (c *Call) InFlight() bool { return c.caller.late }

// Late waits for the answer to an abandoned call in flight, and returns its error, or [ErrLate] after a timeout.
func (c *Call) Late(timeout time.Duration) error {
	select {
	case <-c.caller.done:
		return c.caller.err
	case <-time.After(timeout):
		return ErrLate
	}
}

// Release forgets the key and the contexts of a call, and reports whether it may be used again: not if it is
// [Call.Abandoned].
func (c *Call) Release() bool {
	if c.caller.abandoned {
		return false
	}
	c.Key, c.Others, c.Attempt = c.Key[:0], c.Others[:0], bucket.Attempt{}
	c.caller.ctx, c.caller.ended, c.caller.timedOut, c.caller.borrowed = nil, nil, nil, nil
	return true
}

// KeyOf returns the key of a bucket.
func (c *Call) KeyOf(i int) []byte { return c.of(i).Key }

// of returns the key of a bucket, with its attempt.
func (c *Call) of(i int) (key OtherKey) {
	key = OtherKey{Key: c.Key, Hash: c.Hash, Attempt: c.Attempt}
	for n := range c.Others {
		if c.Others[n].From <= i {
			key = c.Others[n]
		}
	}
	return key
}

// peek returns a call that looks at the same buckets, which changes nothing.
func (c *Call) peek() *Call {
	peek := NewCall()
	peek.Set(bucket.Peek(1), slices.Clone(c.Buckets), c.Layout)
	peek.Key, peek.Hash = bytes.Clone(c.Key), c.Hash
	for i, name := range c.Names {
		peek.Names[i] = bytes.Clone(name)
	}
	return peek
}

// sameKeys reports whether two calls are about the same keys, in the same order.
func (c *Call) sameKeys(other *Call) bool {
	return c.Hash == other.Hash && bytes.Equal(c.Key, other.Key) &&
		slices.EqualFunc(c.Others, other.Others, func(a, b OtherKey) bool {
			return a.From == b.From && a.Hash == b.Hash && bytes.Equal(a.Key, b.Key)
		})
}

// errEnded stands for the error of a caller's context (see [orErr]).
var errEnded = errors.New("the context has ended")

// caller is who waits for the answer to a call, and leaves without it if a context ends. Only the
// caller's goroutine uses abandoned and late, within [Dispatcher.Do] and after it.
//
// A context of the application may hang or panic. So only the caller's goroutine calls its Deadline, Done and Err,
// without a lock: the first two before the call is queued, and Err once the caller has left.
type caller struct {
	ctx       context.Context     // its own
	deadline  time.Time           // of ctx; zero if there is none
	ended     <-chan struct{}     // is closed when ctx ends
	timedOut  <-chan struct{}     // is closed at the timeout
	done      chan struct{}       // has room for the one answer
	err       error               // of the answer
	borrowed  *goroutine.Borrowed // the context of a batch that has its values, or nil
	abandoned bool                // Do returned without an answer that may still come
	late      bool                // that answer comes
}

// orErr returns the error of a call, or what it stands for.
func orErr(ctx context.Context, err error) error {
	if err != errEnded {
		return err
	}
	return cmp.Or(ctx.Err(), context.Canceled)
}

// wait waits for the answer and returns its error, or why the caller leaves before.
func (c *caller) wait() (answered bool, err error) {
	select {
	case <-c.done:
		return true, c.err
	case <-c.ended:
		return false, errEnded
	case <-c.timedOut:
		return false, ErrLate
	}
}

// hasAnswer takes the answer if there is one.
func (c *caller) hasAnswer() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// leaves reports whether the caller is about to leave.
func (c *caller) leaves() bool { return isClosed(c.ended) || isClosed(c.timedOut) }

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
