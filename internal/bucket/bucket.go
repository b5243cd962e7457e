// Package bucket is the arithmetic of rate limits, in integers alone. A [Bucket] is a limit, a [State]
// is what a store finds of it, and an [Op] is what a caller wants of it.
//
// It owns the table of kinds, with a file for each. The scripts and package memory decide by the same
// arithmetic. It knows no store, no key and no clock: the caller passes times in, in milliseconds.
package bucket

import "math"

// MaxUnits is 2^53 - 1, the largest integer that a Lua number holds exactly.
const MaxUnits = 1<<53 - 1

// Never is the wait if no waiting makes a charge fit, in any unit.
const Never = math.MaxInt64

// Bucket is a limit, a ban or slots, in the integers that the scripts use.
//
// With p the period in milliseconds and g = gcd(rate, p), a token weighs p/g units and rate/g units
// flow back per millisecond, so nothing is ever rounded. The level of a bucket is how many units it
// is short of full.
//
// In a window a token weighs one unit. Nothing flows back: all units come back at once.
type Bucket struct {
	ID       string // differs between the buckets of one key
	Kind     Kind
	Burst    int64 // tokens that it holds
	Whole    int64 // tokens that one charge may take; a charge above Burst needs a full bucket and leaves debt
	Cost     int64 // units that one token weighs
	Drain    int64 // units that flow back per millisecond
	Capacity int64 // units that it holds, without the floor
	Floor    int64 // units that stay for others; only a Charge takes them
	Period   int64 // milliseconds
	Ends     int64 // when a calendar period ends, in Unix milliseconds by this process' clock; else 0

	// Args are the bucket as arguments of a script (see decide.lua): Drain, or the Period of a
	// window; Cost, or the kind of a window; then Capacity. They are boxed once, not for each call.
	Args [3]any
}

// State is what a store finds of a bucket.
type State struct {
	Level int64 // units short of full

	// In milliseconds, of what does not say so by its level. Slots have a Place and Others instead.
	More  int64 // of a window, until it has more tokens than after the charge
	Wait  int64 // until one more charge fits: of windows, tenants and bans, and of token buckets on Hold
	Reset int64 // of a window, until it is full, or until its calendar period ends

	Mark int64 // finds what a call took of a window again, for a Return; it has no unit

	Shares *Shares // of Tenants; it does not change

	Era int64 // in the process: how many resets, and Gives of all of a window, there had been before, of any key
}

// New returns the bucket of a limit. Its rate and period are positive and its burst is at least 1.
// It reports false if the limit is too large to be counted exactly.
func New(kind Kind, id string, rate, burst, period int64) (Bucket, bool) {
	b := Bucket{ID: id, Kind: kind, Burst: burst, Whole: burst, Cost: 1, Period: period}
	if kind == Token {
		g := gcd(rate, period)
		b.Cost, b.Drain = period/g, rate/g
	}
	if burst > MaxUnits/b.Cost || burst*b.Cost > b.maxLevel() {
		return Bucket{}, false
	}
	b.Capacity = burst * b.Cost
	if b.Args = [...]any{b.Drain, b.Cost, b.Capacity}; b.Drain == 0 {
		b.Args = [...]any{b.Period, kinds[kind].module, b.Capacity}
	}
	return b, true
}

// Counted returns how many of the buckets belong to limits. All others come after them.
func Counted(buckets []Bucket) int {
	n := len(buckets)
	for n > 0 && !buckets[n-1].IsLimit() {
		n--
	}
	return n
}

// Tokens reports whether tokens flow back to all buckets evenly.
func Tokens(buckets []Bucket) bool {
	for i := range buckets {
		if !buckets[i].Flows() {
			return false
		}
	}
	return true
}

// Same reports whether two lists have buckets of the same limits.
func Same(a, b []Bucket) bool {
	if len(a) != len(b) {
		return false
	}
	if &a[0] == &b[0] { // of one policy
		return true
	}
	for i := range a {
		a, b := &a[i], &b[i]
		if a.Capacity != b.Capacity || a.Cost != b.Cost || a.Drain != b.Drain || a.Whole != b.Whole ||
			a.Kind != b.Kind || a.ID != b.ID {
			return false
		}
	}
	return true
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// CeilDiv divides a number that is not negative by a positive one and rounds up. Their sum may pass
// the largest integer.
func CeilDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}
