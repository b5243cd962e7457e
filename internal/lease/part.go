package lease

import "time"

// Part is some tokens of a lease, for a call that takes the others that it wants from Redis.
type Part struct {
	Tokens int64
	entry  *entry
	lease  *lease
}

// TakePart takes at most that many of the tokens of a key that may be used.
func (c *Cache) TakePart(s Subject, most int64) (p Part) {
	e := c.find(&s)
	if e == nil {
		return p
	}
	l := c.current(e)
	if l == nil {
		return p
	}
	n, _ := l.take(time.Since(l.sent), most, 1)
	return Part{Tokens: n, entry: e, lease: l}
}

// Use reports whether the tokens may be used now.
func (c *Cache) Use(p Part) bool {
	l := c.unbroken(p.entry, p.lease)
	if l == nil || time.Since(l.sent) >= min(l.life, l.end) {
		return false
	}
	c.admitted.Add(1)
	return true
}

// PutBack leaves tokens that are not used to the lease, or gives them back if it is over.
func (c *Cache) PutBack(p Part) {
	e, l := p.entry, p.lease
	e.mu.Lock()
	defer e.mu.Unlock()
	if !l.over {
		l.left.Add(p.Tokens)
		return
	}
	c.giveBack(e.unusedOf(l.first, p.Tokens, l))
}
