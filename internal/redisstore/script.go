package redisstore

import "github.com/ginlimit/ginlimit/internal/bucket"

// The scripts. Each is for calls on certain buckets.
const (
	Tokens         = iota // token buckets
	Fixed                 // fixed windows and calendar periods
	Sliding               // sliding windows
	TokensCalendar        // token buckets together with calendar periods
	Mixed                 // limits of any other kinds together
	Limits                // how many scripts are for limits alone

	Single         = TokensCalendar // the first that does not decide on each of many keys
	WithBanOrSlots = Limits         // from here on: the scripts for limits again, with a ban, slots or both
	BanOrSlots     = 2 * Limits     // a ban, slots or both alone
	Report         = BanOrSlots + 1 // what this process holds of slots
	Scripts        = BanOrSlots + 2 // how many scripts there are
)

// scriptOfKind is the script for limits of one kind.
var scriptOfKind = [bucket.Kinds]int{
	bucket.Token: Tokens, bucket.FixedWindow: Fixed, bucket.SlidingWindow: Sliding,
}

// Whole begins a reply that has all integers of a calendar period, though the script has a shorter
// one.
const Whole = -1

// Sources are the scripts in Lua.
type Sources struct {
	Server [Scripts]string
	Node   [Single]string // for calls on many keys on a node of a cluster
}

// scriptOf returns the script that decides on buckets.
func scriptOf(buckets []bucket.Bucket) int {
	limits := buckets[:bucket.Counted(buckets)]
	script := BanOrSlots
	if len(limits) > 0 {
		script = scriptOfLimits(limits)
		if len(limits) < len(buckets) {
			script += WithBanOrSlots
		}
	}
	return script
}

// scriptOfLimits returns the script that decides on the buckets of limits.
func scriptOfLimits(limits []bucket.Bucket) int {
	same, short := true, true
	for i := range limits {
		b := &limits[i]
		same = same && b.Kind == limits[0].Kind
		short = short && (b.Kind == bucket.Token || b.Ends != 0)
	}
	switch {
	case same:
		return scriptOfKind[limits[0].Kind]
	case short:
		return TokensCalendar
	}
	return Mixed
}

// shape is how many integers a reply has.
type shape struct {
	limits []bucket.Bucket
	window int // of a window
	all    int // of all limits
	guards int // of a ban and slots
}

// shapeOf returns the shape of the reply to a call on buckets that a script decides on. Whole says
// how the reply begins.
func shapeOf(buckets []bucket.Bucket, whole bool) (s shape) {
	counted := bucket.Counted(buckets)
	s.limits, s.window = buckets[:counted], 5
	if scriptOf(buckets)%WithBanOrSlots == TokensCalendar && counted > 0 && !whole {
		s.window = 1
	}
	for i := range s.limits {
		s.all += s.sizeOf(&s.limits[i])
	}
	for i := range buckets[counted:] {
		if s.guards++; buckets[counted+i].Kind == bucket.Ban {
			s.guards++
		}
	}
	return s
}

// sizeOf returns how many integers a limit's bucket has.
func (s *shape) sizeOf(b *bucket.Bucket) int {
	if b.Kind == bucket.Token {
		return 1
	}
	return s.window
}
