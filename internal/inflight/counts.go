// Package inflight counts the requests of each client that this process serves, and knows what to
// report to Redis.
//
// A request in flight holds a slot of its key. An attempt to take one has a number, larger than
// those before it. As of any moment, all attempts of a key up to some number are ended: they hold a
// slot or never will. The process reports that number and how many slots these attempts hold. Redis
// keeps the granted attempts beyond it by their numbers, and denies one that is ended already, as
// nobody waits for it any more. So whatever is lost, repeated or late, Redis never counts fewer
// slots than are held, and not for long more.
package inflight

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

const (
	// Life is for how long a count in Redis is valid: slots.lua has the same.
	Life = 10 * time.Second
	// Renewal is after how long slots that are held are reported again. A process that cannot reach
	// Redis for up to 7 s loses none: the last report before may be as old as Renewal and a tick,
	// and Redis is found again, and gets a report, within 1.25 s.
	Renewal = time.Second
	shards  = 64
	// maxGone is how many keys without a slot a shard remembers, until a report of them has reached
	// Redis. Redis forgets others by itself.
	maxGone = 1024
	// minChanges is how many changes of keys that are forgotten may be kept.
	minChanges = 64
)

// Counts counts requests in flight, of each key.
type Counts struct {
	numbers  atomic.Int64 // of attempts
	versions atomic.Int64 // of what is to be reported
	total    atomic.Int64 // slots
	seed     maphash.Seed
	shards   [shards]shard
	reporter reporter
}

// shard has a share of the keys. Its mutex guards it.
type shard struct {
	mu      sync.Mutex
	keys    map[string]*record
	changes []string // keys to be reported
	gone    int      // keys without a slot that are remembered all the same
}

// record is what is known of a key. The mutex of its shard guards it.
type record struct {
	pending []attempt // those that are not ended, the oldest first
	newest  int64     // attempt
	ended   int64     // all attempts up to it are
	held    int       // slots of these
	later   []int64   // granted attempts beyond it
	beyond  int64     // the newest attempt beyond it to be reported once it is ended: what Redis knows of it is not so
	version int64     // of what is to be reported
	known   int64     // the version that Redis knows
	listed  bool      // among the shard's changes
	due     time.Time // when slots that are held are to be reported again, or a report that has failed
	failed  bool      // its report has failed: it is not tried again before it is due
	doubt   bool      // an attempt may be late that nobody waits for, or a report
	until   time.Time // the doubt lasts
}

type attempt struct {
	number  int64
	version int64 // of the record, which it reports
}

func (r *record) slots() int { return r.held + len(r.later) }

// idle reports whether there is nothing to remember.
func (r *record) idle() bool {
	return len(r.pending) == 0 && r.slots() == 0 && !r.changed() && !r.doubt
}

// changed reports whether there is something to report.
func (r *record) changed() bool { return r.version > r.known }

// New returns counts without a request. They report to Redis by a function, or to nobody if that is
// nil.
func New(report Report) *Counts {
	c := &Counts{seed: maphash.MakeSeed()}
	c.reporter.init(report)
	return c
}

func (c *Counts) shard(key []byte) *shard { return &c.shards[maphash.Bytes(c.seed, key)%shards] }

// with calls f with what is known of a key, which it may change, and forgets the key if that is
// nothing.
func (c *Counts) edit(key []byte, f func(r *record)) {
	if c.editLocked(c.shard(key), key, f) {
		c.start()
	}
}

// editLocked is with. It reports whether there is something to report, now or later.
func (c *Counts) editLocked(s *shard, key []byte, f func(r *record)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.keys[string(key)]
	if r == nil {
		if s.keys == nil {
			s.keys = map[string]*record{}
		}
		r = &record{ended: c.numbers.Load()}
		s.keys[string(key)] = r
	}
	slots, wasGone := r.slots(), r.gone()
	f(r)
	c.total.Add(int64(r.slots() - slots))
	if c.reporter.report == nil {
		r.known, r.doubt = r.version, false
	}
	s.countGoneLocked(r, wasGone)
	if r.idle() || r.gone() && s.gone > maxGone {
		s.forgetLocked(string(key), r)
		return false
	}
	if r.changed() && !r.listed && !r.failed {
		if len(s.changes) > 2*len(s.keys)+minChanges { // most are of keys that are forgotten
			s.changes = slices.DeleteFunc(s.changes, func(key string) bool { return s.keys[key] == nil || !s.keys[key].listed })
		}
		r.listed, s.changes = true, append(s.changes, string(key))
		c.reporter.wake()
	}
	return r.changed() || r.doubt || r.slots() > slots
}

// gone reports whether the key has no slot, and is remembered all the same: there is something to
// report, or there is doubt.
func (r *record) gone() bool {
	return len(r.pending) == 0 && r.slots() == 0 && (r.changed() || r.doubt)
}

// doubts has there be doubt from a time on.
func (r *record) doubts(now time.Time) { r.doubt, r.until = true, now.Add(Life) }

func (s *shard) countGoneLocked(r *record, was bool) {
	switch is := r.gone(); {
	case is && !was:
		s.gone++
	case was && !is:
		s.gone--
	}
}

// clearLocked notes that the doubt is over.
func (s *shard) clearLocked(key string, r *record) {
	was := r.gone()
	r.doubt = false
	s.countGoneLocked(r, was)
	if r.idle() {
		s.forgetLocked(key, r)
	}
}

func (s *shard) forgetLocked(key string, r *record) {
	if r.gone() {
		s.gone--
	}
	delete(s.keys, key)
}

// Begin returns a new attempt to take a slot of a key. It is to be ended.
func (c *Counts) Begin(key []byte) (a bucket.Attempt) {
	c.edit(key, func(r *record) {
		a.Number = c.numbers.Add(1)
		r.newest, a.Ended, a.Held = a.Number, r.ended, int64(r.held)
		r.pending = append(r.pending, attempt{a.Number, r.version})
	})
	return a
}

// Look returns what is ended and held of a key, for a call that makes no attempt.
func (c *Counts) Look(key []byte) (a bucket.Attempt) {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.keys[string(key)]; r != nil {
		a.Ended, a.Held = r.ended, int64(r.held)
	}
	return a
}

// Outcome is how an attempt ends.
type Outcome uint8

const (
	Denied  Outcome = iota // it holds no slot, and Redis knows of none
	Granted                // it holds a slot that Redis knows of
	Lost                   // it holds no slot, though Redis may have granted one, or do so late
	Local                  // it holds a slot that Redis may not know of
)

// End ends an attempt. One that has ended already stays as it is.
func (c *Counts) End(key []byte, number int64, outcome Outcome) {
	c.edit(key, func(r *record) { c.end(r, number, outcome) })
}

// Try ends an attempt without Redis. It holds a slot if f agrees, which is told how many are held.
// If the attempt was sent, Redis may have granted it.
func (c *Counts) Try(key []byte, number int64, sent bool, f func(held int64) bool) {
	c.edit(key, func(r *record) {
		outcome := Denied
		if f(int64(r.slots())) {
			outcome = Local
		} else if sent {
			outcome = Lost
		}
		if c.end(r, number, outcome); sent {
			r.doubts(time.Now())
		}
	})
}

// change notes that there is something to report.
func (c *Counts) markChanged(r *record) { r.version = c.versions.Add(1) }

func (c *Counts) end(r *record, number int64, outcome Outcome) {
	i := slices.IndexFunc(r.pending, func(a attempt) bool { return a.number == number })
	if i < 0 {
		return
	}
	one, upTo := r.pending[i], r.newest
	r.pending = slices.Delete(r.pending, i, i+1)
	switch outcome {
	case Granted:
		r.later = append(r.later, number)
		if r.known = max(r.known, one.version); !r.failed {
			r.due = time.Now().Add(Renewal)
		}
	case Local:
		r.later, r.beyond = append(r.later, number), max(r.beyond, number)
		c.markChanged(r)
	case Lost:
		r.beyond = max(r.beyond, number)
		c.markChanged(r)
		r.doubts(time.Now())
	}
	if len(r.pending) > 0 {
		upTo = r.pending[0].number - 1
	}
	c.endUpTo(r, upTo)
}

// endUpTo counts the attempts up to a number as ended.
func (c *Counts) endUpTo(r *record, number int64) {
	if number <= r.ended {
		return
	}
	r.ended = number
	r.later = slices.DeleteFunc(r.later, func(n int64) bool {
		if n <= number {
			r.held++
		}
		return n <= number
	})
	if r.beyond > 0 {
		c.markChanged(r)
		if r.beyond <= number {
			r.beyond = 0
		}
	}
}

// Release gives the slot of an attempt back.
func (c *Counts) Release(key []byte, number int64) {
	c.edit(key, func(r *record) {
		if i := slices.Index(r.later, number); i >= 0 {
			r.later = slices.Delete(r.later, i, i+1)
			r.beyond = max(r.beyond, number)
		} else {
			r.held = max(0, r.held-1)
		}
		c.markChanged(r)
	})
}

// Held returns how many slots of a key are held.
func (c *Counts) Held(key []byte) int64 {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.keys[string(key)]; r != nil {
		return int64(r.slots())
	}
	return 0
}

// Total returns how many slots of all keys are held.
func (c *Counts) Total() int { return int(c.total.Load()) }

// Update is what is to be reported of a key.
type Update struct {
	Key   string
	Ended int64
	Held  int64
	Doubt bool // an attempt may be late

	version int64
}

// changes adds what has changed since the last report, up to most keys. It begins with another
// shard each time.
func (c *Counts) changes(updates []Update, most int) []Update {
	for range c.shards {
		s := &c.shards[c.reporter.from%shards]
		s.mu.Lock()
		n := min(len(s.changes), most-len(updates))
		for _, key := range s.changes[:n] {
			if r := s.keys[key]; r != nil && r.listed {
				if r.listed = false; r.changed() {
					updates = append(updates, r.update(key))
				}
			}
		}
		s.changes = slices.Delete(s.changes, 0, n)
		s.mu.Unlock()
		if len(updates) >= most {
			break
		}
		c.reporter.from++
	}
	return updates
}

// reported returns whether Redis knows all that has changed, and no key is in doubt.
func (c *Counts) reported() bool {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		gone := s.gone
		s.mu.Unlock()
		if gone > 0 {
			return false
		}
	}
	return true
}

func (r *record) update(key string) Update {
	return Update{key, r.ended, int64(r.held), r.doubt, r.version}
}

// renewals returns what is to be reported again as of a time, of at most that many keys.
func (c *Counts) renewals(now time.Time, most int) (updates []Update) {
	for range c.shards {
		s := &c.shards[c.reporter.scan%shards]
		s.mu.Lock()
		for key, r := range s.keys {
			if r.doubt && !r.until.After(now) {
				s.clearLocked(key, r)
			}
			if len(updates) < most && (r.slots() > 0 || r.failed) && !r.due.After(now) {
				updates = append(updates, r.update(key))
			}
		}
		s.mu.Unlock()
		if len(updates) >= most {
			break
		}
		c.reporter.scan++
	}
	return updates
}

// renewAll has all slots be due: Redis may have forgotten them.
func (c *Counts) renewAll() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for _, r := range s.keys {
			r.due = time.Time{}
		}
		s.mu.Unlock()
	}
}

// retryFailed lists failed reports among the changes.
func (c *Counts) retryFailed() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for key, r := range s.keys {
			if r.failed && r.changed() && !r.listed {
				r.listed, s.changes = true, append(s.changes, key)
			}
			r.failed = false
		}
		s.mu.Unlock()
	}
}

// reportEnded notes which updates, sent at a time, have reached Redis. The others may reach it
// late, and are sent again with the next tick. It returns whether one has whose report had failed
// before.
func (c *Counts) reportEnded(updates []Update, reached []bool, sent time.Time) (back bool) {
	now := time.Now()
	for i := range updates {
		u := &updates[i]
		c.edit([]byte(u.Key), func(r *record) {
			back = back || r.failed && reached[i]
			if r.failed = !reached[i]; r.failed {
				r.due = now.Add(tick / 2)
				r.doubts(now)
				return
			}
			r.known, r.due = max(r.known, u.version), sent.Add(Renewal)
		})
	}
	return back
}
