// Package inflight counts the requests of each client that this process serves, and reports the
// counts to Redis. It owns the numbers of attempts, and when to report. It never knows how a report travels, nor
// how many slots a key has.
//
// A request in flight holds a slot of its key. Each attempt to take a slot has a number, larger
// than all earlier numbers. At any moment, all attempts of a key up to some number have ended: they
// hold a slot or never will. The process reports that number and how many slots these attempts
// hold. Redis keeps the granted attempts beyond that number, and denies an attempt that has already
// ended, because nobody waits for it any more. So Redis never counts too few slots, and counts too
// many only for a short time, whatever the network does.
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
	// Life is how long a count in Redis is valid; slots.lua uses it too.
	Life = 10 * time.Second
	// Renewal is how often held slots are reported again. A process that cannot reach Redis for up
	// to 7 s loses no slot: the last report is at most Renewal and a tick old, and the next one
	// arrives at most 1.25 s after Redis is back.
	Renewal = time.Second
	shards  = 64
	// maxLingering is how many keys without a slot are remembered until Redis has their report.
	// Redis forgets further keys by expiry.
	maxLingering = 1 << 16
	// minChanges is how many changes of forgotten keys a shard may keep.
	minChanges = 64
)

// Counts counts each key's requests in flight.
type Counts struct {
	numbers   atomic.Int64 // the newest attempt
	versions  atomic.Int64 // the newest version of a record
	total     atomic.Int64 // held slots
	lingering atomic.Int64 // records that linger
	seed      maphash.Seed
	shards    [shards]shard
	reporter  reporter
}

// shard holds some of the keys. Its mutex guards it.
type shard struct {
	mu      sync.Mutex
	keys    map[string]*record
	changes []string // keys with something to report
}

// record is a key's state. The mutex of its shard guards it.
type record struct {
	pending  []attempt // attempts that have not ended, oldest first
	newest   int64     // newest attempt
	ended    int64     // all attempts up to it have ended
	held     int       // slots of ended attempts
	granted  []int64   // granted attempts after ended
	unsure   int64     // newest attempt after ended of which Redis may have a wrong state
	version  int64     // of the state to report
	reported int64     // version that Redis has
	listed   bool      // in the shard's changes
	spare    bool      // Redis had slots left, last: nobody waits for one that is released
	carrier  int64     // an attempt that was to report the state to Redis, instead of a report; 0 is none
	due      time.Time // when to report again
	failed   bool      // its report failed; it waits until due
	doubt    bool      // an attempt or a report may still arrive late
	until    time.Time // end of the doubt
	lingers  bool      // there is no slot, and it is remembered for a report, a doubt or news
	news     News      // the latest
	heldThen int       // slots, at the time of the news, and those that Redis has granted since
	alone    int       // slots that were taken without Redis since the news
}

type attempt struct {
	number  int64
	version int64 // of the record; the attempt reports it
}

func (r *record) slots() int { return r.held + len(r.granted) }

// changed reports whether there is something to report.
func (r *record) changed() bool { return r.version > r.reported }

// carry reports whether an attempt that has not ended reports the state, so that no report need. After one that has
// ended and did not, none is trusted until the state is reported. An attempt that reports a release takes that slot
// again, so a release for which other processes may wait has a report of its own.
func (r *record) carry() bool {
	n := len(r.pending)
	if !r.spare || n == 0 || r.pending[n-1].version != r.version || r.carrier != 0 && r.find(r.carrier) < 0 {
		return false
	}
	r.carrier = r.pending[n-1].number
	return true
}

// carried reports whether an attempt is trusted to report the state.
func (r *record) carried() bool {
	i := -1
	if r.carrier != 0 {
		i = r.find(r.carrier)
	}
	return i >= 0 && r.pending[i].version == r.version
}

// find returns the place of an attempt that has not ended, or -1.
func (r *record) find(number int64) int {
	return slices.IndexFunc(r.pending, func(a attempt) bool { return a.number == number })
}

// New returns counts without requests. If report is nil, nothing is reported.
func New(report Report) *Counts {
	c := &Counts{seed: maphash.MakeSeed()}
	c.reporter.init(report)
	return c
}

func (c *Counts) shard(key []byte) *shard { return &c.shards[c.shardOf(key)] }

func (c *Counts) shardOf(key []byte) uint64 { return maphash.Bytes(c.seed, key) % shards }

// edit calls f with a key's record, which f may change, and forgets the key if nothing is left.
func (c *Counts) edit(key []byte, f func(r *record)) {
	if c.editIn(c.shard(key), key, f) {
		c.start()
	}
}

// editIn does edit on the key's shard. It reports whether there is something to report, now or
// later.
func (c *Counts) editIn(s *shard, key []byte, f func(r *record)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.editLocked(s, key, f)
}

func (c *Counts) editLocked(s *shard, key []byte, f func(r *record)) bool {
	r := s.keys[string(key)]
	if r == nil {
		if s.keys == nil {
			s.keys = map[string]*record{}
		}
		r = &record{ended: c.numbers.Load()}
		s.keys[string(key)] = r
	}
	slots := r.slots()
	f(r)
	c.total.Add(int64(r.slots() - slots))
	return c.keepLocked(s, key, r) && (r.changed() || r.doubt || r.lingers || r.slots() > slots)
}

// keepLocked lists a record that has changed, or forgets it if nothing is left. It reports whether it is kept.
func (c *Counts) keepLocked(s *shard, key []byte, r *record) bool {
	if c.reporter.report == nil {
		r.reported, r.doubt = r.version, false
	}
	free := len(r.pending) == 0 && r.slots() == 0
	lingers := free && (r.changed() || r.doubt || r.news.Others > 0) && (r.lingers || c.lingering.Load() < maxLingering)
	if lingers != r.lingers {
		change := int64(-1)
		if r.lingers = lingers; lingers {
			change = 1
		}
		c.lingering.Add(change)
	}
	if free && !r.lingers {
		delete(s.keys, string(key))
		return false
	}
	if !r.changed() {
		r.carrier = 0
	}
	if r.changed() && !r.listed && !r.failed && !r.carried() {
		if len(s.changes) > 2*len(s.keys)+minChanges { // mostly forgotten keys
			s.changes = slices.DeleteFunc(s.changes,
				func(key string) bool { return s.keys[key] == nil || !s.keys[key].listed })
		}
		r.listed, s.changes = true, append(s.changes, string(key))
		c.reporter.wake()
	}
	return true
}

// setDoubt starts a doubt.
func (r *record) setDoubt(now time.Time) { r.doubt, r.until = true, now.Add(Life) }

// Begin begins an attempt to take a slot of a key. The caller must end it.
func (c *Counts) Begin(key []byte) (a bucket.Attempt) {
	c.edit(key, func(r *record) {
		a.Number = c.numbers.Add(1)
		r.newest, a.Ended, a.Held = a.Number, r.ended, int64(r.held)
		r.pending = append(r.pending, attempt{a.Number, r.version})
	})
	return a
}

// Look returns the ended attempts and held slots of a key, for a call that makes no attempt.
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
	Denied  Outcome = iota // no slot, and Redis knows of none
	Granted                // a slot that Redis knows of, perhaps the last one
	Spare                  // such a slot, and others were left
	Lost                   // no slot, though Redis may have granted one or may do so late
	Local                  // a slot that Redis may not know of
	surplus                // no slot, though Redis has granted one
)

// End ends an attempt, unless it has ended already.
func (c *Counts) End(key []byte, number int64, outcome Outcome) {
	c.edit(key, func(r *record) { c.end(r, number, outcome) })
}

// Answer ends an attempt, unless it has ended already, by an answer of Redis: [Denied], [Granted] or [Spare]. It
// reports whether the answer holds. If this process holds as many slots as the limit or more, some of which Redis may
// not know of, it gives a granted slot back.
func (c *Counts) Answer(key []byte, number int64, outcome Outcome, news News, limit int64) (holds bool) {
	holds = true
	c.edit(key, func(r *record) {
		before := r.slots()
		if outcome != Denied && int64(before) >= limit && r.find(number) >= 0 {
			holds, outcome = false, surplus
		}
		c.end(r, number, outcome)
		r.learn(news, r.slots()-before)
	})
	return holds
}

// Try is an attempt that ends without Redis, or a look if its number is 0.
type Try struct {
	Key    []byte
	Number int64
	Sent   bool    // Redis may have granted it
	Of     Holders // of the key's slots, set by TryAll
}

// TryAll ends attempts without Redis, as one: each holds a slot if f returns true, which it calls once it knows
// who holds slots, or none. The keys differ.
func (c *Counts) TryAll(tries []Try, f func() bool) {
	if c.tryAll(tries, f) {
		c.start()
	}
}

// tryAll is TryAll, and reports whether there is something to report.
func (c *Counts) tryAll(tries []Try, f func() bool) (report bool) {
	var locks [shards]bool
	for i := range tries {
		locks[c.shardOf(tries[i].Key)] = true
	}
	for i := range locks { // in one order
		if locks[i] {
			c.shards[i].mu.Lock()
			defer c.shards[i].mu.Unlock()
		}
	}
	for i := range tries {
		tries[i].Of = c.shard(tries[i].Key).keys[string(tries[i].Key)].holders()
	}
	granted := f()
	for i := range tries {
		t := &tries[i]
		if t.Number == 0 {
			continue
		}
		report = c.editLocked(c.shard(t.Key), t.Key, func(r *record) {
			outcome := Denied
			if granted {
				outcome = Local
			} else if t.Sent {
				outcome = Lost
			}
			if c.end(r, t.Number, outcome); t.Sent {
				r.setDoubt(time.Now())
			}
		}) || report
	}
	return report
}

// markChanged marks the record as to be reported.
func (c *Counts) markChanged(r *record) { r.version = c.versions.Add(1) }

func (c *Counts) end(r *record, number int64, outcome Outcome) {
	i := r.find(number)
	if i < 0 {
		return
	}
	ended, upTo := r.pending[i], r.newest
	r.pending, r.spare = slices.Delete(r.pending, i, i+1), outcome == Spare
	switch outcome {
	case Granted, Spare:
		r.granted = append(r.granted, number)
		if r.reported = max(r.reported, ended.version); !r.failed {
			r.due = time.Now().Add(Renewal)
		}
	case Local:
		r.granted, r.unsure = append(r.granted, number), max(r.unsure, number)
		r.alone++
		c.markChanged(r)
	case surplus:
		r.unsure = max(r.unsure, number)
		c.markChanged(r)
	case Lost:
		r.unsure = max(r.unsure, number)
		c.markChanged(r)
		r.setDoubt(time.Now())
	}
	if len(r.pending) > 0 {
		upTo = r.pending[0].number - 1
	}
	c.endUpTo(r, upTo)
}

// endUpTo counts the attempts up to number as ended.
func (c *Counts) endUpTo(r *record, number int64) {
	if number <= r.ended {
		return
	}
	r.ended = number
	r.granted = slices.DeleteFunc(r.granted, func(n int64) bool {
		if n <= number {
			r.held++
		}
		return n <= number
	})
	if r.unsure > 0 {
		c.markChanged(r)
		if r.unsure <= number {
			r.unsure = 0
		}
	}
}

// Release releases the slot of an attempt.
func (c *Counts) Release(key []byte, number int64) {
	c.edit(key, func(r *record) {
		if i := slices.Index(r.granted, number); i >= 0 {
			r.granted = slices.Delete(r.granted, i, i+1)
			r.unsure = max(r.unsure, number)
		} else {
			r.held = max(0, r.held-1)
		}
		c.markChanged(r)
	})
}

// Holders returns who holds slots of a key.
func (c *Counts) Holders(key []byte) Holders {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[string(key)].holders()
}

// Held returns the number of held slots of a key.
func (c *Counts) Held(key []byte) int64 {
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.keys[string(key)]; r != nil {
		return int64(r.slots())
	}
	return 0
}

// Total returns the number of held slots of all keys.
func (c *Counts) Total() int { return int(c.total.Load()) }
