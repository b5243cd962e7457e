package simulation_test

import (
	"slices"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
)

// What the simulation of slots checks, while it runs and when it is over.

const (
	// simSlotNews is how long a report may be on its way: of a release, or of an attempt that was given up.
	simSlotNews, simSlotNewsOfCluster = 20 * time.Millisecond, 100 * time.Millisecond

	// simSlotTurn is how long Redis keeps a slot free for a process that has waited for one and waits no more.
	simSlotTurn = 400 * time.Millisecond
)

// checkInFlightLocked wants at most m in flight of the requests that were admitted under numbers up to m. If the number
// never changes, these are all requests.
//
// Of those that are in flight now, the one that was decided last found all others in flight, so its number is at least
// how many they are; and so on for the one before it.
func (s *slotSimulation) checkInFlightLocked(c *slotCall, level int) {
	key := c.key(level)
	var numbers []int
	for _, other := range s.inFlight[key] {
		if s.countsFor(c, other) {
			numbers = append(numbers, other.n[level])
		}
	}
	slices.Sort(numbers)
	for i, n := range numbers {
		if n < i+1 {
			s.violated("%d are in flight of key %v at %s, admitted under %d", len(numbers), key, time.Since(s.start), numbers)
			return
		}
	}
}

// countsFor reports whether a call counts another one, as all do that Redis admits. A process that decides itself
// counts its own.
func (s *slotSimulation) countsFor(c, other *slotCall) bool {
	return !s.plan.local || c.process == other.process
}

// checkAdmissionLocked wants a request to be admitted only if fewer than its number were in flight when that was
// decided, which took no longer than one decision may. Requests that were in flight all the time since then are those.
func (s *slotSimulation) checkAdmissionLocked(c *slotCall, level int) {
	decided := s.decidedAfter(c)
	before := 0
	for _, other := range s.inFlight[c.key(level)] {
		if !other.end.After(decided) && s.countsFor(c, other) {
			before++
		}
	}
	if before >= c.n[level] {
		s.violated("%s is admitted at %s, though %d are in flight of key %v", c, time.Since(s.start), before, c.key(level))
	}
	if c.result.Source != ginlimit.FromRedis && !s.plan.local {
		s.violated("%s is admitted from %s", c, c.result.Source)
	}
}

// decidedAfter returns when the decision on a call began at the earliest.
func (s *slotSimulation) decidedAfter(c *slotCall) time.Time {
	if decided := c.end.Add(-s.decision()); decided.After(c.start) {
		return decided
	}
	return c.start
}

// decision is how long one decision may take: the timeout, and a tenth of it.
func (s *slotSimulation) decision() time.Duration { return s.plan.timeout + s.plan.timeout/10 }

// checkTime wants nobody to wait for longer than in the queue and then for one decision. While Redis is late a call
// that waits may find no answer to its first try either.
func (s *slotSimulation) checkTime(c *slotCall) {
	most := s.plan.wait + s.decision()
	if s.plan.queue > 0 && !s.isQuiet(c) {
		most += s.decision()
	}
	if took := c.end.Sub(c.start); took > most {
		s.violated("%s takes %s", c, took)
	}
}

// checkEnd wants everything to be free.
func (s *slotSimulation) checkEnd() {
	if left := s.keys(); len(left) > 0 {
		s.violated("in the end Redis has %q", left)
	}
	for process, m := range s.members {
		if got := m.limiter.Stats().Slots; got != 0 && !s.died[process] {
			s.violated("in the end process %d counts %d slots", process, got)
		}
	}
}

// checkCalls wants calls to end in time, and a cause for each denial and each failure of a call before anything has
// happened, and of one after what has happened matters no more.
func (s *slotSimulation) checkCalls() {
	ofKey := map[slotKey][]*slotCall{}
	for _, c := range s.calls {
		for level := range c.n {
			ofKey[c.key(level)] = append(ofKey[c.key(level)], c)
		}
	}
	for _, c := range s.calls {
		if s.checkTime(c); c.result.Allowed || c.dead || !s.isQuiet(c) {
			continue
		}
		s.counts["causes looked for"]++
		if c.err != nil {
			if c.patience == 0 || c.end.Sub(c.start) < c.patience {
				s.violated("%s fails at %s: %v", c, c.end.Sub(s.start), c.err)
			}
			continue
		}
		name, slots := strings.CutSuffix(c.result.Name, "-c")
		level := slices.Index(levelNames[:len(c.n)], name)
		switch {
		case level < 0 || slots != (c.result.Cause == ginlimit.CauseInFlight) && c.result.Cause != ginlimit.CauseQueueFull:
			s.violated("%s is denied by %q, %s", c, c.result.Name, c.result.Cause)
		case c.result.Cause == ginlimit.CauseQueueFull:
			s.counts["denied by a full queue"]++
			if wait := s.waitingBefore(c, level); s.plan.queue == 0 || wait < s.plan.queue {
				s.violated("%s is denied by the full queue of %s, in which %d wait", c, c.result.Name, wait)
			}
		case s.plan.queue > 0 && s.waitingBefore(c, level) > 0:
			s.counts["denied behind others that wait"]++
		case slots:
			s.checkDenial(c, level, ofKey[c.key(level)])
		default:
			s.checkDenialOfTokens(c, level, ofKey[c.key(level)])
		}
	}
}

// isQuiet reports whether nothing that has happened matters to a call.
func (s *slotSimulation) isQuiet(c *slotCall) bool {
	return s.first.IsZero() || c.end.Before(s.first) || c.start.After(s.quiet.Add(simSlotLife))
}

// waitingBefore returns how many others of the call's process may have waited in the line of its key of a level when it
// was decided to deny it.
func (s *slotSimulation) waitingBefore(c *slotCall, level int) (n int) {
	decided := s.decidedAfter(c)
	for _, other := range s.calls {
		if other != c && other.process == c.process && !other.start.After(c.end) && !other.end.Before(decided) &&
			level < len(other.n) && other.key(level) == c.key(level) {
			n++
		}
	}
	return n
}

// checkDenial wants the slots of the level that denies to be held at one moment of the call; of a call that has waited
// alone, when it looked for the last time.
func (s *slotSimulation) checkDenial(c *slotCall, level int, ofKey []*slotCall) {
	from := c.start
	last := c.start.Add(s.plan.wait - s.plan.timeout - s.news())
	if s.plan.queue > 0 && last.After(from) && !last.After(c.end) { // else it was denied at once, as its client leaves
		s.counts["denied after waiting alone"]++
		from = last
	}
	if held := s.mostHeld(c, from, ofKey); held < c.n[level] {
		s.violated("%s is denied by %s at %s, though at most %d are held", c, c.result.Name, c.end.Sub(s.start), held)
	}
}

// mostHeld returns how many slots of a key other calls may hold at the moment from a time until the call's end at which
// these are most: that time, or when one of them is asked for.
func (s *slotSimulation) mostHeld(c *slotCall, from time.Time, ofKey []*slotCall) (most int) {
	var others []*slotCall
	for _, other := range ofKey {
		if other != c && !other.start.After(c.end) && !s.holdsUntil(other).Before(from) {
			others = append(others, other)
		}
	}
	for _, first := range append(others, &slotCall{start: from}) {
		moment, held := first.start, 0
		if moment.Before(from) {
			continue
		}
		for _, other := range others {
			if !other.start.After(moment) && !s.holdsUntil(other).Before(moment) {
				held++
			}
		}
		most = max(most, held)
	}
	return most
}

// holdsUntil returns until when Redis may count a slot of a call, since the call's start, or keep one free for its
// process.
func (s *slotSimulation) holdsUntil(c *slotCall) time.Time {
	waits := time.Duration(0)
	if s.plan.queue > 0 {
		waits = simSlotTurn
	}
	switch {
	case c.dead: // its death has happened by then
		return s.quiet.Add(s.news())
	case c.result.Allowed:
		return c.released.Add(s.news())
	case c.err != nil, // Redis may still be asked, on a new connection perhaps, and grant it
		s.plan.nodes > 1 && len(c.n) > 1: // what an earlier level gave is given back
		return c.end.Add(s.plan.timeout + s.news() + waits)
	case s.plan.queue > 0:
		return c.end.Add(waits)
	}
	return time.Time{}
}

func (s *slotSimulation) news() time.Duration {
	if s.plan.nodes > 1 {
		return simSlotNewsOfCluster
	}
	return simSlotNews
}

// checkDenialOfTokens wants a bucket to have less than one token at a moment of the call, or when it would have waited
// for long enough, if all calls that may have taken one have.
func (s *slotSimulation) checkDenialOfTokens(c *slotCall, level int, ofKey []*slotCall) {
	rate, until := float64(s.plan.levels[level].rate), c.start.Add(s.plan.wait)
	if c.patience > 0 && c.patience < s.plan.wait {
		until = c.start.Add(c.patience)
	}
	var ends []time.Time // of charges
	for _, other := range ofKey {
		if charged := s.chargedUntil(other); other != c && !charged.IsZero() && !other.start.After(c.end) {
			ends = append(ends, charged)
		}
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	for i, end := range ends { // if the bucket was full then, at most so much has flowed back since
		back := max(0, until.Sub(end)).Seconds() * rate
		if rate+back-float64(i+1) < 1 {
			return
		}
	}
	s.violated("%s is denied by %s at %s, though there are tokens", c, c.result.Name, c.end.Sub(s.start))
}

// chargedUntil returns when a call is charged at the latest; the zero time is never.
func (s *slotSimulation) chargedUntil(c *slotCall) time.Time {
	switch {
	case c.err != nil && !s.isQuiet(c):
		return s.quiet.Add(s.plan.timeout)
	case c.result.Allowed:
		return c.end.Add(s.news())
	case c.err != nil, // Redis may still be asked
		s.plan.nodes > 1 && len(c.n) > 1: // charged, and given back
		return c.end.Add(s.plan.timeout)
	}
	return time.Time{}
}
