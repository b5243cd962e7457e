package wire

import "github.com/ginlimit/ginlimit/internal/bucket"

// The scripts, by the kinds of buckets that they decide on.
const (
	Tokens         = int(bucket.Token)         // token buckets
	Fixed          = int(bucket.FixedWindow)   // fixed windows and calendar periods
	Sliding        = int(bucket.SlidingWindow) // sliding windows
	TokensCalendar = bucket.TokensCalendar     // token buckets and calendar periods
	Mixed          = bucket.Mixed              // limits of any kinds: of several, or of one that has no script above
	Limits         = Mixed + 1                 // the number of scripts for limits alone

	Single         = TokensCalendar // the first script that does not decide on each of many keys
	WithBanOrSlots = Limits         // the first script for limits with a ban, slots or both
	Node           = 2 * Limits     // the first script for calls on many keys of a cluster node
	BanOrSlots     = Node + Single  // a ban, slots or both, without limits
	Report         = BanOrSlots + 1 // the slots that this process holds
	Lease          = BanOrSlots + 2 // token buckets, also ahead
	Tenants        = BanOrSlots + 3 // a token bucket that tenants share
	ReportNode     = BanOrSlots + 4 // Report of keys of a cluster node in several hash slots
	Count          = BanOrSlots + 5 // the number of scripts
)

// Whole begins a reply in which calendar periods have all their integers, where the script may also
// send a shorter reply.
const Whole = -1

// For returns the number of the script for buckets of a layout.
func For(l *bucket.Layout) int {
	switch {
	case l.Tenants >= 0:
		return Tenants
	case l.Ahead >= 0:
		return Lease
	case l.Limits == 0:
		return BanOrSlots
	case l.Ban >= 0 || l.Slots >= 0:
		return WithBanOrSlots + l.Kinds
	}
	return l.Kinds
}

// ForNode returns the script that does what another one does with keys of a cluster node in several hash slots.
func ForNode(script int) int {
	if script == Report {
		return ReportNode
	}
	return script + Node
}
