package inflight

import (
	"slices"
	"time"
)

// Update is the report of a key.
type Update struct {
	Key   string
	Ended int64
	Held  int64
	Doubt bool // an attempt or a report may still arrive late

	version int64
}

func (r *record) update(key string) Update {
	return Update{key, r.ended, int64(r.held), r.doubt, r.version}
}

// changes appends the changed keys' updates, up to limit updates, except for those that attempts report. Each call
// begins with the next shard.
func (c *Counts) changes(updates []Update, limit int) []Update {
	for range c.shards {
		s := &c.shards[c.reporter.changesFrom%shards]
		s.mu.Lock()
		n := min(len(s.changes), limit-len(updates))
		for _, key := range s.changes[:n] {
			if r := s.keys[key]; r != nil && r.listed {
				switch r.listed = false; {
				case !r.changed():
				case r.carry():
					c.reporter.carried = true
				default:
					updates = append(updates, r.update(key))
				}
			}
		}
		s.changes = slices.Delete(s.changes, 0, n)
		s.mu.Unlock()
		if len(updates) >= limit {
			break
		}
		c.reporter.changesFrom++
	}
	return updates
}

// renewals returns the updates that are due again, and those that attempts have not reported yet, up to limit.
func (c *Counts) renewals(now time.Time, limit int) (updates []Update) {
	c.reporter.carried = false
	for range c.shards {
		s := &c.shards[c.reporter.renewalsFrom%shards]
		s.mu.Lock()
		for key, r := range s.keys {
			if over, old := r.doubt && !r.until.After(now), r.news.Others > 0 && now.Sub(r.news.Sent) >= Life; over || old {
				if r.doubt = r.doubt && !over; old {
					r.news = News{}
				}
				c.keepLocked(s, []byte(key), r)
			}
			uncarried := r.carrier != 0 && r.changed() && !r.failed
			due := (r.slots() > 0 || r.failed) && !r.due.After(now)
			if len(updates) < limit && (uncarried || due) {
				updates = append(updates, r.update(key))
			}
		}
		s.mu.Unlock()
		if len(updates) >= limit {
			break
		}
		c.reporter.renewalsFrom++
	}
	return updates
}

// renewAll makes all slots due: Redis may have forgotten them.
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

// listFailed adds failed reports to the changes, and those that were left to attempts.
func (c *Counts) listFailed() {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for key, r := range s.keys {
			if r.changed() && !r.listed {
				r.listed, s.changes = true, append(s.changes, key)
			}
			r.failed, r.carrier = false, -1 // which no attempt has
		}
		s.mu.Unlock()
	}
}

// recordReport records which updates reached Redis. The others may still arrive late; they are sent
// again with the next tick. It reports whether a key recovered from a failed report.
func (c *Counts) recordReport(updates []Update, reached []bool, sent time.Time) (recovered bool) {
	now := time.Now()
	for i := range updates {
		u := &updates[i]
		c.edit([]byte(u.Key), func(r *record) {
			recovered = recovered || r.failed && reached[i]
			if r.failed = !reached[i]; r.failed {
				r.due = now.Add(tick / 2)
				r.setDoubt(now)
				return
			}
			r.reported, r.due = max(r.reported, u.version), sent.Add(Renewal)
		})
	}
	return recovered
}
