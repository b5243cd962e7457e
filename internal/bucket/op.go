package bucket

// Verb is what is to be done with the buckets of a key.
type Verb uint8

const (
	Take   Verb = iota // charge all of them or none
	Charge             // charge each, into debt if it must, up to a burst of it
	Give               // give tokens back to each: of a window, those that were taken last
	Return             // give back to each what one call has taken, as far as it still counts
	Block              // have each refuse for a time; none refuses for less than before
	Reset              // fill each up
)

// NoMark stands for a mark that is not known.
const NoMark = -1

// Bans is which refusals ban a client.
type Bans uint8

const (
	NoBans    Bans = iota
	AllBans        // every refusal
	LimitBans      // one by a limit, and not for want of a slot
)

// Op is what a caller wants of the buckets of a key. The zero Op looks: it takes nothing.
type Op struct {
	Verb    Verb
	Charges int64   // Take: as many as fit are made; 0 makes none
	N       int64   // Take: tokens of a charge; Charge, Give and Return: tokens; Block: milliseconds; at least 1, of Reset too
	Bans    Bans    // Take: which refusals ban the client, if there is a ban
	Claims  []Claim // Return: of each bucket, what the call has left in it
	Records Records // Give, Return and Reset: whether they are written down too
}

// Claim is what a call has left in a bucket, by which Return gives back no more than that.
//
// A bucket drains by the oldest charges first. So of a charge of some units, found on top of a level, that many of them
// and the level are left less what has drained since, unless calls on top of which it was have given back meanwhile: then it
// drains sooner. However many did, it drains no faster than the bucket does.
type Claim struct {
	Mark   int64 // of a window, the mark that the call has left, or NoMark: then nothing is given back
	Sure   int64 // units that are left, whatever other calls have given back since, if the bucket was not reset
	Behind int64 // units that are left of it and of what was there before, if nothing was given back since
	Age    int64 // milliseconds until now in which others may have given back since
	Made   int64 // milliseconds since the call at least: what was taken later does not lie below it
	Resets int64 // milliseconds until now in which a reset may have been since
	Known  int64 // resets in this time that are known to have been before
}

// NewClaim returns the claim of a charge of some units, which found a level, after so many nanoseconds by the caller's clock.
// The store's clock may be a little faster. A reset before the charge may have been written down as much later as late says.
func (b *Bucket) NewClaim(level, units, age, late int64) Claim {
	age = max(0, age)
	age += age / 1024
	c := Claim{Sure: units, Behind: units, Age: CeilDiv(age, 1e6), Resets: CeilDiv(age+late, 1e6)}
	if b.Kind == Token {
		drained := b.drained(age)
		c.Sure, c.Behind = max(0, units-drained), max(0, level+units-drained)
	}
	return c
}

// drained returns the units that flow back in so many nanoseconds, rounded up.
func (b *Bucket) drained(ns int64) int64 {
	us := CeilDiv(ns, 1000)
	if us > MaxUnits/b.Drain {
		return MaxUnits
	}
	return CeilDiv(us*b.Drain, 1000)
}

// Left returns how many of the units of a return of so many tokens are left, after others were given back since, and others
// were taken away by a reset.
func (c *Claim) Left(b *Bucket, n, given, reset int64) int64 {
	units := min(n, MaxUnits/b.Cost) * b.Cost
	return max(0, min(units, max(c.Sure, c.Behind-given))-max(0, reset-c.Known*(b.Capacity+b.Floor)))
}

// Records is whether what leaves a bucket other than by draining is written into a record too, by which claims are checked.
type Records uint8

const (
	NoRecords      Records = iota // of what comes back as it was taken
	WithRecords                   // in the same call
	RecordsOnly                   // in a call of their own, before the buckets: the keys are not on one node now
	RecordsWritten                // the buckets' call then
)

// The bounds of a record.
const (
	RecordSpans    = 16      // parts that it keeps apart of the time for which it matters
	MaxRecordTimes = 48      // times that it has at most, after many resets
	MaxAge         = 1 << 52 // age in milliseconds of what may have been taken at any time
)

// Peek returns the Op that looks at what a charge of n tokens would meet.
func Peek(n int64) Op { return Op{Verb: Take, N: n} }

// Merges reports whether calls with o and other on the same buckets can be one call, for the sum of their charges.
func (o Op) Merges(other Op) bool {
	takes := o.Verb == Take && other.Verb == Take && o.Charges > 0 && other.Charges > 0
	return takes && o.N == other.N && o.Bans == other.Bans && o.Charges <= MaxUnits-other.Charges
}

// Only returns the Op for one of the buckets.
func (o Op) Only(i int) Op {
	if o.Claims != nil {
		o.Claims = o.Claims[i : i+1]
	}
	return o
}
