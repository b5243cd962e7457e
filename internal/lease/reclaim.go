package lease

import (
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// unused returns tokens of the entry's key that are to be given back to Redis.
func (e *entry) unused(n int64, marks []int64, age time.Duration) Unused {
	u := Unused{Subject: Subject{[]byte(e.key), e.hash, e.buckets}, Tokens: n, Age: age}
	if !bucket.Tokens(e.buckets) {
		u.Marks = marks
	}
	return u
}

// reclaimLocked ends the lease of an entry, and returns the tokens that may be given back to Redis
// within a time.
func (c *Cache) reclaimLocked(e *entry, within time.Duration) (back Unused, ok bool) {
	l := c.current(e)
	if l == nil {
		return back, false
	}
	e.lease.Store(nil)
	age := time.Since(l.sent) + within
	n := l.void(e.buckets, age)
	if n <= 0 {
		return back, false
	}
	var marks []int64
	for i := range l.after {
		marks = append(marks, l.after[i].Mark)
	}
	return e.unused(n, marks, age), true
}
