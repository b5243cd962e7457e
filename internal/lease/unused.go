package lease

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// Unused holds tokens of a key that were taken ahead and not used.
type Unused struct {
	Subject
	Tokens int64
	first  taken         // by the call that counts as the one that took them
	life   time.Duration // of the lease
	marks  []int64       // of windows
	unsure time.Duration // within which Redis found them
}

// Op returns the Op that gives the tokens back, as far as they will still be left in the buckets after
// a time, which the call takes at most. A window gets nothing back if it may be mistaken for its next
// one by a call that takes that time, or half a lease if that is shorter: else a long timeout would
// lose all.
func (u *Unused) Op(within time.Duration) bucket.Op {
	claims := make([]bucket.Claim, len(u.Buckets))
	age := int64(time.Since(u.first.sent) + within)
	for i := range claims {
		b := &u.Buckets[i]
		units := u.Tokens * b.Cost
		claims[i] = b.NewClaim(max(0, u.first.after[i].Level-units), units, age, int64(time.Millisecond))
		claims[i].Made = max(0, time.Since(u.first.received).Milliseconds()-1)
		claims[i].Mark = u.marks[i]
		late, whole := u.unsure+min(within, u.life/2), endOf(bucket.State{Reset: b.Period})
		if !b.Flows() && b.Ends == 0 && late >= whole {
			claims[i].Mark = bucket.NoMark // the next window has as little left by then
		}
	}
	return bucket.Op{Verb: bucket.Return, N: u.Tokens, Claims: claims, Records: bucket.WithRecords}
}

// unused returns the last n tokens of a lease, to give back: what its own call took, and then what
// earlier calls took.
func (e *entry) unused(n int64, l *lease) (all []Unused) {
	own := min(n, l.own)
	for _, u := range []Unused{e.unusedOf(l.taken, own, l), e.unusedOf(l.first, n-own, l)} {
		if u.Tokens > 0 {
			all = append(all, u)
		}
	}
	return all
}

// unusedOf returns n tokens of a lease to give back, as if a call had taken them last. The mark of a window is
// what remains of it now, at most, so a window that has begun since they were sent does not take them for its
// own. A window that has ended gets nothing back.
func (e *entry) unusedOf(call taken, n int64, l *lease) Unused {
	u := Unused{
		Subject: Subject{Key: []byte(e.key), Hash: e.hash, Buckets: e.buckets},
		first:   call, life: l.life, unsure: l.received.Sub(l.sent),
	}
	age, ms := time.Since(l.sent), max(0, time.Since(l.received).Milliseconds())
	for i, after := range l.after {
		mark := max(min(0, after.Mark), after.Mark-ms+ms/1024)
		if !e.buckets[i].Flows() && age >= endOf(after) {
			mark = bucket.NoMark
		} else {
			u.Tokens = n
		}
		u.marks = append(u.marks, mark)
	}
	return u
}

// giveBack gives tokens back if there are any.
func (c *Cache) giveBack(all ...Unused) {
	for _, u := range all {
		if u.Tokens > 0 {
			c.send(u)
		}
	}
}

// returnLater gives the tokens of an entry's lease back at its end, unless a call before holds them for
// longer. e.mu is held.
func (c *Cache) returnLater(e *entry, l *lease) {
	left := l.life - time.Since(l.sent)
	if e.ending != nil {
		e.ending.Reset(left)
		return
	}
	e.ending = time.AfterFunc(left, func() { c.giveBack(c.reclaim(e, true)...) })
}

// reclaim returns the tokens of an entry's lease and leaves none in it. If only a lease that has
// ended is meant, it leaves another as it is.
func (c *Cache) reclaim(e *entry, ended bool) []Unused {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lease.Load()
	if l == nil || ended && (time.Since(l.sent) < l.life || c.closing.Load()) {
		return nil
	}
	if !ended && e.ending != nil {
		e.ending.Stop()
	}
	return e.unused(l.finish(), l)
}
