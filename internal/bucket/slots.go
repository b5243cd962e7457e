package bucket

import "math"

var slots = kind{
	integers: 1, divided: true, waits: slotWaits,

	fits: func(b *Bucket, s State, charges, _ int64) int64 { return min(charges, max(0, b.Capacity-s.Level)) },
	charged: func(_ *Bucket, s State, charges, _ int64) State {
		s.Level += charges
		return s
	},
	lapsed: func(s State) State { // they may all be free by now
		s.Level = 0
		return s
	},
}

// SlotRetry is the RetryAfter in milliseconds if there is no slot. Nobody knows when a request
// ends.
const SlotRetry = 1000

// NewSlots returns n slots. A request in flight holds one. The level is the slots in use.
func NewSlots(n int64) Bucket {
	return Bucket{ID: "slots", Kind: Slots, Burst: math.MaxInt64, Whole: math.MaxInt64, Cost: 1, Capacity: n}
}

// SlotsState returns how many slots are in use, how many of them other processes hold, and the place of this
// process among those that wait.
func SlotsState(used, others, place int64) State {
	return State{Level: used, More: place, Reset: others}
}

// Others returns how many slots other processes hold.
func (s State) Others() int64 { return s.Reset }

// Place returns the place of this process among those that wait for slots, or 0.
func (s State) Place() int64 { return s.More }

// slotWaits are the waits for a slot: nobody knows when one is free again.
func slotWaits(b *Bucket, s State, _ int64) (retry, reset, more int64) {
	if s.Level >= b.Capacity {
		return SlotRetry, SlotRetry, SlotRetry
	}
	return 0, 0, 0
}

// Attempt is what a process reports of a client's slots when it tries to take one.
//
// The process reports what it holds as an absolute number, and numbers its attempts. So a lost,
// repeated or late call changes nothing for long.
type Attempt struct {
	Number int64 // a later attempt of this process has a larger number; 0 only looks
	Ended  int64 // all attempts up to this number have ended: they hold a slot or never will
	Held   int64 // the slots that ended attempts hold
}
