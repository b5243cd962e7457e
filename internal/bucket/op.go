package bucket

import "slices"

// Verb is what an operation does to the buckets of a key.
type Verb uint8

const (
	Take   Verb = iota // charges all of them or none
	Charge             // charges each, into debt if it must, up to a burst of it
	Give               // gives tokens back to each; a window gives back what was taken last
	Return             // gives back to each what one call took, as far as it still counts
	Block              // makes each deny for a time, or for as long as it denies already
	Reset              // fills each up
)

// NoMark is the mark of a call whose tokens cannot be found again.
const NoMark = -1

// Bans says which denials ban a client.
type Bans uint8

const (
	NoBans    Bans = iota
	AllBans        // every denial
	LimitBans      // a denial by a limit, but not for want of a slot
)

// Op is what a caller wants of the buckets of a key. The zero Op looks: it takes nothing.
type Op struct {
	Verb    Verb
	Charges int64   // of a Take: as many as fit are made; 0 makes none
	Ahead   int64   // of a Take: charges after these that are taken ahead, of which as many as fit are made
	Held    int64   // of a Take: tokens taken ahead before, which are to be held for longer
	N       int64   // tokens of each charge, or tokens; of a Block milliseconds; at least 1, also of a Reset
	Each    []int64 // of a Take: tokens of each charge by bucket, if they differ; it does not change, and N is 1
	Bans    Bans    // of a Take: which denials ban the client, if there is a ban
	Waits   int64   // of a Take: milliseconds until its process is no longer known to wait for a slot; 0 if it does not
	Claims  []Claim // of a Return: what the call has left in each bucket
	Records Records // of Give, Return and Reset: whether they are recorded too
	Tenant  Tenant  // whose charges they are, if tenants share the buckets
}

// Claim is what a call has left in a bucket. Return gives back no more than that.
//
// A bucket drains its oldest charges first. So a charge drains after the level that it was found on
// top of, except if the calls below it gave tokens back: then it drains sooner. It never drains
// faster than the bucket does.
type Claim struct {
	Mark   int64 // of a window: the mark that the call left; with NoMark nothing is given back
	Sure   int64 // units that are left, whatever other calls gave back
	Behind int64 // units that are left of the charge and the level below it, if nothing was given back since
	Age    int64 // milliseconds until now in which others may have given back
	Made   int64 // milliseconds since the call, at least: what was taken later does not lie below it
	Resets int64 // in Redis: a reset in these milliseconds until now may have come after the call, and voids the claim
	Era    int64 // in the process: the State's of the call; a bucket of a later one voids the claim
}

// NewClaim returns the claim of a charge of some units on top of a level. The charge was made age
// nanoseconds ago by the caller's clock; the store's clock may be a little faster. The store does
// what it is asked at most late nanoseconds later.
func (b *Bucket) NewClaim(level, units, age, late int64) Claim {
	age = max(0, age)
	age += age / 1024
	c := Claim{Sure: units, Behind: units, Age: CeilDiv(age, 1e6), Resets: CeilDiv(age+late, 1e6)}
	if b.Flows() {
		drained := b.drained(age)
		c.Sure, c.Behind = max(0, units-drained), max(0, level+units-drained)
	}
	return c
}

// Gone reports whether nothing is given back, whatever others did.
func (c *Claim) Gone() bool { return c.Mark == NoMark || max(c.Sure, c.Behind) <= 0 }

// Left returns how many units of a Return of n tokens are left, after others gave back given units.
func (c *Claim) Left(b *Bucket, n, given int64) int64 {
	return max(0, min(min(n, MaxUnits/b.Cost)*b.Cost, max(c.Sure, c.Behind-given)))
}

// Records says whether a record keeps what leaves a bucket other than by draining. Claims are
// checked against records.
type Records uint8

const (
	NoRecords   Records = iota // nothing is recorded: what is given back was just taken
	WithRecords                // in the same call
)

// The bounds of a record.
const (
	RecordSpans    = 16      // how many parts of the time for which it matters a record tells apart
	MaxRecordTimes = 48      // the most times in a record, if the limit changes often
	MaxAge         = 1 << 52 // the age in milliseconds of what may have been taken at any time
)

// Peek returns the Op that looks at what a charge of n tokens would meet.
func Peek(n int64) Op { return Op{Verb: Take, N: n} }

// Tokens returns how many tokens of a bucket each charge takes.
func (o *Op) Tokens(i int) int64 {
	if o.Each != nil {
		return o.Each[i]
	}
	return o.N
}

// Merges reports whether one call can do o and other on the same buckets, by the sum of their
// charges.
func (o Op) Merges(other Op) bool {
	takes := o.Verb == Take && other.Verb == Take && o.Charges > 0 && other.Charges > 0
	return takes && o.Ahead+o.Held+other.Ahead+other.Held == 0 &&
		o.N == other.N && slices.Equal(o.Each, other.Each) && o.Bans == other.Bans && o.Waits == other.Waits &&
		o.Charges <= MaxUnits-other.Charges
}
