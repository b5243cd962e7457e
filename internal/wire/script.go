package wire

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
	Node           = 2 * Limits     // the first script for calls on many keys of a cluster node
	BanOrSlots     = Node + Single  // a ban, slots or both, without limits
	Report         = BanOrSlots + 1 // the slots that this process holds
	Lease          = BanOrSlots + 2 // token buckets, also ahead
	Tenants        = BanOrSlots + 3 // a token bucket that tenants share
	Count          = BanOrSlots + 4 // the number of scripts
)

// kindScripts maps a kind of limit to its script.
var kindScripts = [bucket.Kinds]int{
	bucket.Token: Tokens, bucket.FixedWindow: Fixed, bucket.SlidingWindow: Sliding,
}

// Whole begins a reply in which calendar periods have all their integers, where the script may also
// send a shorter reply.
const Whole = -1

// For returns the number of the script for buckets.
func For(buckets []bucket.Bucket) int {
	limits := buckets[:bucket.Counted(buckets)]
	switch last := buckets[len(buckets)-1].Kind; {
	case last == bucket.Tenants:
		return Tenants
	case last == bucket.Ahead:
		return Lease
	case len(limits) == 0:
		return BanOrSlots
	case len(limits) < len(buckets):
		return WithBanOrSlots + forLimits(limits)
	}
	return forLimits(limits)
}

// forLimits returns the number of the script for limits' buckets.
func forLimits(limits []bucket.Bucket) int {
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
