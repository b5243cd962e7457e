package redisstore

import "github.com/ginlimit/ginlimit/internal/bucket"

// The scripts, by the kinds of buckets that they decide on.
const (
	Tokens         = iota // token buckets
	Fixed                 // fixed windows and calendar periods
	Sliding               // sliding windows
	TokensCalendar        // token buckets and calendar periods
	Mixed                 // limits of other kinds mixed
	Limits                // the number of scripts for limits alone

	Single         = TokensCalendar // the first script that does not decide on each of many keys
	WithBanOrSlots = Limits         // the first script for limits with a ban, slots or both
	BanOrSlots     = 2 * Limits     // a ban, slots or both, without limits
	Report         = BanOrSlots + 1 // the slots that this process holds
	Lease          = BanOrSlots + 2 // token buckets, also ahead
	Tenants        = BanOrSlots + 3 // a token bucket that tenants share
	Scripts        = BanOrSlots + 4 // the number of scripts
)

// kindScripts maps a kind of limit to its script.
var kindScripts = [bucket.Kinds]int{
	bucket.Token: Tokens, bucket.FixedWindow: Fixed, bucket.SlidingWindow: Sliding,
}

// Whole begins a reply in which calendar periods have all their integers, where the script may also
// send a shorter reply.
const Whole = -1

// Sources are the scripts in Lua.
type Sources struct {
	Server [Scripts]string
	Node   [Single]string // for calls on many keys of a cluster node
}

// scriptFor returns the script for buckets.
func scriptFor(buckets []bucket.Bucket) int {
	limits := buckets[:bucket.Counted(buckets)]
	switch buckets[len(buckets)-1].Kind {
	case bucket.Tenants:
		return Tenants
	case bucket.Ahead:
		return Lease
	}
	script := BanOrSlots
	if len(limits) > 0 {
		script = scriptForLimits(limits)
		if len(limits) < len(buckets) {
			script += WithBanOrSlots
		}
	}
	return script
}

// scriptForLimits returns the script for limits' buckets.
func scriptForLimits(limits []bucket.Bucket) int {
	same, short := true, true
	for i := range limits {
		b := &limits[i]
		same = same && b.Kind == limits[0].Kind
		short = short && (b.Kind == bucket.Token || b.Ends != 0)
	}
	switch {
	case same:
		return kindScripts[limits[0].Kind]
	case short:
		return TokensCalendar
	}
	return Mixed
}

// listsAll reports whether the reply of a script may begin with Whole.
func listsAll(script int) bool { return script < Tenants && script%WithBanOrSlots >= Single }

// shape counts the integers in a reply.
type shape struct {
	limits      []bucket.Bucket
	window      int // per window
	all         int // for all limits
	banAndSlots int // for a ban and slots
}

// newShape returns the shape of the reply for buckets. whole is set if the reply begins with Whole.
func newShape(buckets []bucket.Bucket, whole bool) (s shape) {
	counted := bucket.Counted(buckets)
	s.limits, s.window = buckets[:counted], 5
	script := scriptFor(buckets)
	if script != Tenants && script%WithBanOrSlots == TokensCalendar && counted > 0 && !whole {
		s.window = 1
	}
	for i := range s.limits {
		s.all += s.size(&s.limits[i])
	}
	for i := range buckets[counted:] {
		if s.banAndSlots++; buckets[counted+i].Kind == bucket.Ban {
			s.banAndSlots++
		}
	}
	return s
}

// size returns how many integers a limit's bucket has.
func (s *shape) size(b *bucket.Bucket) int {
	if b.Kind == bucket.Token {
		return 1
	}
	return s.window
}
