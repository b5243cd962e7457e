package scripts_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// limitArgs returns the limits as arguments of a script.
func (g *guardTrace) limitArgs() (keys []string, args []any) {
	for i := range g.kind.limits {
		b := &g.kind.limits[i]
		keys, args = append(keys, limitKey(b)), append(args, b.Args[:]...)
		if b.Ends != 0 {
			args[3*i] = b.Left(g.now())
		}
	}
	return keys, args
}

// message draws a report of a process' slots, and later attempts.
func (g *guardTrace) message() (process string, ended, held int64, attempts []int64) {
	if g.base += g.r.Int64N(2); g.base > 40 {
		g.base = 0
	}
	process = []string{"P1", "P1", "P1", "P11", "P2", "P3"}[g.r.IntN(6)]
	ended, held = max(0, g.base+g.r.Int64N(5)-3), g.r.Int64N(3)
	for _, number := range g.r.Perm(10)[:g.r.IntN(4)] {
		attempts = append(attempts, ended+1+int64(number))
	}
	if g.r.IntN(2) == 0 {
		slices.Sort(attempts)
	}
	return process, ended, held, attempts
}

// guardCall is a call of guards.lua.
type guardCall struct {
	keys     []string
	args     []any
	buckets  []bucket.Bucket // the limits, and then the guards
	op       bucket.Op
	slots    *slotLook
	attempts []int64

	// Of a call for several keys at once:
	other         *slotLook // the slots of another key; nil if it is a call for one key
	otherAttempts []int64
	own           int  // how many of the first limits are of the key that is banned
	ownSlots      bool // whether the first slots are
}

// call draws a call with a ban, slots or both.
func (g *guardTrace) call(verb string) *guardCall {
	c := &guardCall{op: bucket.Op{Charges: g.r.Int64N(3), N: 1 + g.r.Int64N(2), Bans: bucket.Bans(g.r.IntN(3))}}
	guards := 1 + g.r.IntN(3) // 1: a ban, 2: slots, 3: both
	keys, limits := g.limitArgs()
	c.keys, c.buckets = keys, slices.Clone(g.kind.limits)
	c.own, c.ownSlots = len(limits)/3, true
	several := guards > 1 && g.r.IntN(2) == 0
	if several {
		c.own, c.ownSlots = g.r.IntN(c.own+1), g.r.IntN(2) == 0
	}
	var more []any
	if guards != 2 {
		c.keys, c.buckets = append(c.keys, banKey), append(c.buckets, g.ban)
		more = append(more, g.ban.Cost, g.ban.Capacity, int(c.op.Bans), c.own, map[bool]int{true: 1}[c.ownSlots])
	}
	if guards > 1 {
		process, ended, held, attempts := g.message()
		c.op.Charges, c.attempts = int64(len(attempts)), attempts
		add := func(m *slotModel, key string, ended, held int64, attempts []int64) *slotLook {
			text := ""
			for _, number := range attempts {
				text += strconv.FormatInt(number, 10) + ","
			}
			c.keys, c.buckets = append(c.keys, key), append(c.buckets, bucket.NewSlots(g.count))
			more = append(more, g.count, ended, held, text)
			return m.read(g.now(), process, ended, held)
		}
		more = append(more, process, 0)
		c.slots = add(&g.slots[0], slotKey, ended, held, attempts)
		if several {
			held = g.r.Int64N(3)
			for _, number := range g.r.Perm(4)[:len(attempts)] {
				c.otherAttempts = append(c.otherAttempts, ended+1+int64(number))
			}
			c.other = add(&g.slots[1], otherSlotKey, ended, held, c.otherAttempts)
		}
	}
	charges := c.op.Charges
	if verb == "reset" { // without records
		charges = 0
	}
	n := c.op.N
	if verb == "take" && len(g.kind.limits) > 1 && g.r.IntN(3) == 0 { // the limits are of several policies
		n, c.op.N, c.op.Each = 0, 1, make([]int64, len(c.buckets))
		for i := range c.op.Each {
			c.op.Each[i] = 1 + g.r.Int64N(3)
			if i < len(g.kind.limits) {
				limits = append(limits, c.op.Each[i])
			}
		}
	}
	c.args = append(append([]any{verb, n, charges}, limits...), []string{"", "ban", "slots", "both"}[guards])
	c.args = append(append(c.args, more...), len(g.kind.limits))
	return c
}

// script returns the script that decides with guards.
func (g *guardTrace) script() int {
	if g.kind.script == wire.BanOrSlots {
		return wire.BanOrSlots
	}
	return wire.WithBanOrSlots + g.kind.script
}

// take makes a decision and compares it with the model's.
func (g *guardTrace) take(t *testing.T) {
	c := g.call("take")
	g.what = fmt.Sprintf("%s: %v %v, slots %q", g.what, c.keys, c.args, g.state(t, slotKey))
	got, err := g.eval(t, g.script(), c.keys, c.args...)
	require.NoError(t, err, g.what)

	states := make([]bucket.State, len(c.buckets))
	if c.slots != nil {
		states[len(states)-1] = c.try(c.slots, c.attempts)
	}
	if c.other != nil {
		states[len(states)-2] = states[len(states)-1]
		states[len(states)-1] = c.try(c.other, c.otherAttempts)
	}
	c.dropLate()
	limits, guards := len(g.kind.limits), c.buckets[len(g.kind.limits):]
	g.decide(c, states)
	charges, fits := c.op.Charges, c.op.Charges // that fit in all, and in the guards alone
	for i := range c.buckets {
		charges = c.buckets[i].Fits(bucket.State{Level: states[i].Level}, charges, c.op.Tokens(i))
		if i >= limits {
			fits = c.buckets[i].Fits(bucket.State{Level: states[i].Level}, fits, c.op.Tokens(i))
		}
	}
	if c.slots != nil && charges > 0 {
		c.slots.own.later = append(c.slots.own.later, c.granted(c.attempts, charges)...)
		g.slots[0].keep(g.now(), c.slots, false)
		g.ends(slotLife)
	}
	if c.other != nil && charges > 0 {
		c.other.own.later = append(c.other.own.later, c.granted(c.otherAttempts, charges)...)
		g.slots[1].keep(g.now(), c.other, false)
	}

	got, whole := g.whole(got)
	var want []int64
	for i, s := range states[:limits] {
		want = append(want, s.Level)
		if b := &c.buckets[i]; whole && b.Kind != bucket.Token {
			reply := got[len(want)-1:]
			if b.Kind == bucket.SlidingWindow && fits > 0 && reply[2] == 0 {
				s.Wait = 0 // it does not say when one more fits if all were made
			}
			want = append(want, s.More, s.Wait, s.Reset, reply[4])
		}
		g.ends(max(s.Wait, s.More))
	}
	for i, s := range states[limits:] {
		if want = append(want, s.Level+s.Others()<<31); guards[i].Kind == bucket.Ban {
			if want = append(want, s.Wait); s.Wait != s.Level {
				g.banned(s.Wait)
			}
			g.ends(s.Wait)
		}
	}
	require.Equal(t, want, got, g.what)
}

// try takes the attempts of a repeated call from what they hold, and returns the slots in use, and those of others.
func (c *guardCall) try(slots *slotLook, attempts []int64) bucket.State {
	slots.own.later = slices.DeleteFunc(slots.own.later, func(number int64) bool {
		return slices.Contains(attempts, number)
	})
	return bucket.SlotsState(slots.inUse(), slotsOf(slots.others), 0)
}

// late reports whether the attempt of a charge has ended at one of the keys.
func (c *guardCall) late(charge int64) bool {
	return c.attempts[charge] <= c.slots.own.ended || c.other != nil && c.otherAttempts[charge] <= c.other.own.ended
}

// dropLate drops the last charges that are late. Earlier ones take tokens, but no slots.
func (c *guardCall) dropLate() {
	for c.slots != nil && c.op.Charges > 0 && c.late(c.op.Charges-1) {
		c.op.Charges--
	}
}

// granted returns which of the attempts at a key are granted by charges.
func (c *guardCall) granted(attempts []int64, charges int64) (granted []int64) {
	for i := range charges {
		if !c.late(i) {
			granted = append(granted, attempts[i])
		}
	}
	return granted
}

// decide decides on a call in the process. Of several keys, only what the banned one lacks bans it: that is
// decided for one charge after another.
func (g *guardTrace) decide(c *guardCall, states []bucket.State) {
	if c.other == nil || c.ban() < 0 {
		g.store.Do([]byte("k"), c.buckets, c.op, states)
		return
	}
	look, made := c.op, c.op
	look.Charges, made.Charges = 0, 0
	g.store.Do([]byte("k"), c.buckets, look, states)
	now, bans := slices.Clone(states), false
	for made.Charges < c.op.Charges {
		fits, ownFits := true, true
		for i := range c.buckets {
			fit := c.buckets[i].Fits(bucket.State{Level: now[i].Level}, 1, c.op.Tokens(i)) == 1
			if fits = fits && fit; g.isOwn(c, i) {
				ownFits = ownFits && fit
			}
		}
		if !fits {
			bans = !ownFits
			break
		}
		made.Charges++
		for i := range c.buckets {
			if c.buckets[i].Kind != bucket.Ban {
				now[i] = c.buckets[i].Charged(now[i], 1, c.op.Tokens(i))
			}
		}
	}
	if made.Charges > 0 {
		g.store.Do([]byte("k"), c.buckets, made, states)
	}
	if bans {
		g.denyAndBan(c, now, states)
	}
}

// ban returns the index of the ban, or -1.
func (c *guardCall) ban() int {
	return slices.IndexFunc(c.buckets, func(b bucket.Bucket) bool { return b.Kind == bucket.Ban })
}

// isOwn reports whether a bucket of a call has the key that is banned.
func (g *guardTrace) isOwn(c *guardCall, i int) bool {
	slots := i == len(c.buckets)-2 && c.buckets[i].Kind == bucket.Slots
	return i < c.own || c.buckets[i].Kind == bucket.Ban || c.ownSlots && slots
}

// denyAndBan makes a denied charge of the key that is banned, and notes the ban in the states.
func (g *guardTrace) denyAndBan(c *guardCall, now, states []bucket.State) {
	one := c.op
	one.Charges, one.Each = 1, nil
	var own []bucket.Bucket
	var found []bucket.State
	for i := range c.buckets {
		if g.isOwn(c, i) {
			own, found, one.Each = append(own, c.buckets[i]), append(found, now[i]), append(one.Each, c.op.Tokens(i))
		}
	}
	g.store.Do([]byte("k"), own, one, found)
	states[c.ban()] = found[slices.IndexFunc(own, func(b bucket.Bucket) bool { return b.Kind == bucket.Ban })]
}

// whole returns a reply without what it begins with if it has all integers of windows, and whether it has.
func (g *guardTrace) whole(reply []int64) ([]int64, bool) {
	if g.kind.script < wire.Single || g.kind.script == wire.BanOrSlots {
		return reply, true
	}
	if reply[0] == wire.Whole {
		return reply[1:], true
	}
	return reply, false
}

// banned notes that the client is banned for so many milliseconds.
func (g *guardTrace) banned(ms int64) {
	if g.free <= g.now() {
		g.bans = 0
	}
	g.bans, g.free = g.bans+1, g.now()+2*ms
	g.ends(2 * ms)
}

// reset forgets limits and ban. Slots stay.
func (g *guardTrace) reset(t *testing.T) {
	c := g.call("reset")
	g.what = fmt.Sprintf("%s: %v %v", g.what, c.keys, c.args)
	got, err := g.eval(t, g.script(), c.keys, c.args...)
	require.NoError(t, err, g.what)
	limits := len(g.kind.limits)
	more := 0
	for i := range c.buckets[limits:] {
		if more++; c.buckets[limits+i].Kind == bucket.Ban {
			more++
			g.free = 0
		}
	}
	require.Equal(t, make([]int64, more), got[len(got)-more:], g.what)
	for i := range g.kind.limits {
		if more++; g.kind.limits[i].Kind != bucket.Token {
			more += 4
		}
	}
	got, whole := g.whole(got)
	require.True(t, whole, g.what)
	require.Len(t, got, more, g.what)
	g.store.Do([]byte("k"), c.buckets, bucket.Op{Verb: bucket.Reset, N: 1}, make([]bucket.State, len(c.buckets)))
}

// guardKind is limits that come together with a ban or slots, or none.
type guardKind struct {
	script int // of the limits alone
	limits []bucket.Bucket
}

// guardKinds are the limits of every script.
func guardKinds(now time.Time) map[string]guardKind {
	of := func(kind bucket.Kind, id string, rate, burst, period int64) bucket.Bucket {
		b, _ := bucket.New(kind, id, rate, burst, period)
		return b
	}
	calendar, _ := bucket.NewCalendar("calendar", 90, time.Hour.Milliseconds(), now.Add(10*time.Hour).UnixMilli())
	tokens := []bucket.Bucket{of(bucket.Token, "a", 3, 5, 100), of(bucket.Token, "b", 1000, 7, 30_000),
		of(bucket.Token, "c", 7, 9, 20)}
	fixed := []bucket.Bucket{of(bucket.FixedWindow, "a", 6, 6, 90), of(bucket.FixedWindow, "d", 9, 9, 400)}
	sliding := []bucket.Bucket{of(bucket.SlidingWindow, "a", 6, 6, 90), of(bucket.SlidingWindow, "e", 9, 9, 300)}
	return map[string]guardKind{
		"no limit":                {wire.BanOrSlots, nil},
		"token bucket":            {int(bucket.Token), tokens[:1]},
		"two token buckets":       {int(bucket.Token), tokens[:2]},
		"three token buckets":     {int(bucket.Token), tokens},
		"fixed window":            {int(bucket.FixedWindow), fixed[:1]},
		"two fixed windows":       {int(bucket.FixedWindow), fixed},
		"sliding window":          {int(bucket.SlidingWindow), sliding[:1]},
		"two sliding windows":     {int(bucket.SlidingWindow), sliding},
		"calendar":                {int(bucket.FixedWindow), []bucket.Bucket{calendar}},
		"token and calendar":      {wire.TokensCalendar, []bucket.Bucket{tokens[0], calendar}},
		"sliding and calendar":    {wire.Mixed, []bucket.Bucket{sliding[0], calendar}},
		"every kind":              {wire.Mixed, []bucket.Bucket{tokens[0], fixed[1], sliding[1], calendar}},
		"calendar between tokens": {wire.TokensCalendar, []bucket.Bucket{tokens[0], calendar, tokens[2]}},
	}
}

func limitKey(b *bucket.Bucket) string { return "{k}:" + b.ID }
