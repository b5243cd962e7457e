package simulation_test

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// The server's clock may be set, forward or back. Redis keeps the time of day at which a key
// expires. So a clock that is set forward drains all buckets by as much at once, and one that is
// set back keeps them for as much longer.
//
// What is promised by the server's clock is checked by that clock: guarantee 1, and what RetryAfter
// says. The deny cache goes by the process' clock, which it trusts once the server's was seen to run
// like it. So for a second after the server's clock was set forward, a denial may be remembered that
// Redis would no longer make. Leases go by the process' clock too. What bounds them goes by the
// server's: once that was set forward, processes may take as much ahead again.

// simSetting is one time that the clock was set.
type simSetting struct {
	at time.Time
	by time.Duration
}

// drawSetting draws how far a clock is set, and whether it is set right again.
func (f *simFault) drawSetting(r *rand.Rand) {
	f.process = -1
	if f.extra = upTo(r, pick(r, 20*time.Millisecond, 300*time.Millisecond, 3*time.Second)); r.IntN(2) == 0 {
		f.extra = -f.extra
	}
	if r.IntN(2) == 0 {
		f.lasts = 0 // it stays so
	}
}

// setClockLocked sets the server's clock forward, or back if by is negative.
func (v *simServer) setClockLocked(by time.Duration) {
	v.tickLocked()
	before := v.now()
	v.ahead += by
	v.settings = append(v.settings, simSetting{time.Now(), by})
	back := before.Sub(v.now())
	v.note("server: the clock is set from %s to %s", before.Format("15:04:05.000"), v.now().Format("15:04:05.000"))
	for _, n := range v.nodes {
		for _, name := range n.mini.Keys() {
			if ttl := n.mini.TTL(name); ttl > 0 && back > 0 {
				n.mini.SetTTL(name, ttl+back) // miniredis keeps how long a key has to live, not until when
			}
		}
	}
	v.tickLocked()
	if back > 0 {
		v.adoptAllLocked()
	}
}

// adoptAllLocked has the reference go on from what the keys say. What has expired does not come back with the time at
// which it was there, but a block that had ended, and tokens of a window that had left, may.
func (v *simServer) adoptAllLocked() {
	for key := range v.plan.keys {
		v.adoptLeaseLocked(key)
	}
	for name, b := range v.names {
		key := v.plan.keys[b.key]
		l := key.versions[v.counted[b.key][b.limit]][b.limit]
		one := v.countedAs(b, v.counted[b.key][b.limit])
		switch {
		case v.foreign[name]:
		case one.quota != "":
			used, blocked := v.quotaIn(name)
			v.reference.quotas[one.quota] = &testkit.ModelQuota{Used: used, Blocked: v.now().UnixMilli() + blocked}
		case v.plan.algorithm == ginlimit.TokenBucket:
			v.reference.adopt(key.name, l, v.bucketIn(name, l))
		default:
			v.reference.adoptWindow(key.name, l, v.windowIn(name, l))
		}
	}
}

// serverTime is how far the server's clock has gone on at most from one time to another, by running
// and by being set forward.
func (s *simulation) serverTime(from, to time.Time) time.Duration {
	return to.Sub(from) + time.Millisecond + s.setForward(from, to) // it shows whole milliseconds
}

// setForward is how far the server's clock was set forward within a time.
func (s *simulation) setForward(from, to time.Time) (sum time.Duration) {
	for _, set := range s.server.settings {
		if !set.at.Before(from) && !set.at.After(to) {
			sum += max(0, set.by)
		}
	}
	return sum
}

// setBack reports whether the server's clock was set back within a time.
func (s *simulation) setBack(from, to time.Time) bool {
	return slices.ContainsFunc(s.server.settings, func(set simSetting) bool {
		return set.by < 0 && !set.at.Before(from) && !set.at.After(to)
	})
}

// setBetween is how far the server's clock was set forward between two of its decisions, at least.
// The first was made from first to told, the second from again to last.
func (s *simulation) setBetween(first, told, again, last time.Time) (sum time.Duration) {
	for _, set := range s.server.settings {
		switch {
		case set.at.Before(first) || set.at.After(last):
		case set.at.After(told) && set.at.Before(again):
			sum += set.by
		default: // before or after one of them
			sum += min(0, set.by)
		}
	}
	return sum
}

// logStands reports whether the log of a sliding window may stand still at a time, since the
// server's clock was set back and has not caught up (kind/sliding.lua). RetryAfter is by the
// clock of the log.
func (s *simulation) logStands(at time.Time) bool {
	ahead, latest := s.plan.clock, s.start
	for _, set := range s.server.settings {
		if set.at.After(at) {
			break
		}
		if before := set.at.Add(ahead); before.After(latest) {
			latest = before
		}
		ahead += set.by
	}
	return s.plan.algorithm == ginlimit.SlidingWindow && at.Add(ahead).Before(latest)
}
