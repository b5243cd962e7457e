// Package bucket is the arithmetic of rate limits, in integers alone.
//
// A limit is a [Bucket], what is found of it a [State], and what a caller wants of it an [Op]. Time is in milliseconds and
// always passed in. The scripts of Redis and the package memory decide by the same arithmetic.
package bucket

// MaxUnits is 2^53 - 1: up to here a Lua number is an exact integer.
const MaxUnits = 1<<53 - 1

// MaxLogged is 2^52 - 1, the most tokens in the log of a sliding window (see kind/sliding.lua).
const MaxLogged = 1<<52 - 1

// Grace is for how many milliseconds the tokens taken of a calendar period are kept after its end: a call may
// have begun before it, the caller's clock may be set back, and another caller's may be behind.
const Grace = 3_600_000

// Never is the wait for what no waiting makes fit.
const Never = -1

// Kind is how a bucket regains tokens.
type Kind uint8

const (
	Token         Kind = iota // evenly spread
	FixedWindow               // all at once, a period after the first was taken; or when a calendar period ends
	SlidingWindow             // each a period after it was taken
	Kinds              = iota // how many kinds of limits there are

	Slots Kind = iota - 1 // none: a slot is free when whoever holds it says so
	Ban                   // none: while it has a level, nobody is admitted
)

// Bucket is a counted limit in the integers of script.lua, or of decide.lua.
//
// With p the period in milliseconds and g = gcd(rate, p), a token weighs p/g units and rate/g units flow back per
// millisecond, so nothing is ever rounded. The level of a bucket is how many units it is short of full.
//
// A window is a bucket to which nothing flows back: a token weighs one unit, and comes back all at once.
type Bucket struct {
	ID       string // differs between the buckets of one key
	Kind     Kind
	Burst    int64 // tokens it holds
	Whole    int64 // tokens that may be taken at once; a charge of more than Burst is taken when it is full, into debt
	Cost     int64 // units a token weighs
	Drain    int64 // units that flow back per millisecond
	Capacity int64 // units it holds, without those of Floor
	Floor    int64 // units that are left to others; they are taken by a Charge alone
	Period   int64 // milliseconds
	Ends     int64 // of a calendar period, when it ends, in Unix milliseconds by this process' clock; else 0

	// Args are the bucket as arguments of a script, see decide.lua: Drain, or Period of a window; Cost, or the kind of
	// a window; then Capacity. They are boxed once, not for each call.
	Args [3]any
}

// State is what is found of a bucket.
type State struct {
	Level int64 // units it is short of full

	// Of a window, in milliseconds:
	Soon  int64 // until it has more tokens than after the charge
	Wait  int64 // until a further charge of so many tokens fits; of a ban too, after a refusal that caused it
	Reset int64 // until it is full; of a calendar period, until it ends

	Mark int64 // by which what was taken of a window is found again (see Return), in no unit
}

// New returns the bucket of a limit whose rate and period are positive and burst is not below 1. It is false if that
// is too large to be counted exactly.
func New(kind Kind, id string, rate, burst, period int64) (Bucket, bool) {
	b := Bucket{ID: id, Kind: kind, Burst: burst, Whole: burst, Cost: 1, Period: period}
	if kind == Token {
		g := gcd(rate, period)
		b.Cost, b.Drain = period/g, rate/g
	}
	if burst > MaxUnits/b.Cost || burst*b.Cost > MaxUnits-b.Drain || kind == SlidingWindow && burst > MaxLogged {
		return Bucket{}, false
	}
	b.Capacity = burst * b.Cost
	switch kind {
	case FixedWindow:
		b.Args = [...]any{b.Period, "fixed", b.Capacity}
	case SlidingWindow:
		b.Args = [...]any{b.Period, "sliding", b.Capacity}
	default:
		b.Args = [...]any{b.Drain, b.Cost, b.Capacity}
	}
	return b, true
}

// NewCalendar returns the bucket of n tokens, at least one, of a calendar period of so many milliseconds. It is false if n
// is too large to be counted exactly.
func NewCalendar(id string, n, period, ends int64) (Bucket, bool) {
	b, ok := New(FixedWindow, id, n, n, period)
	b.Ends, b.Args = ends, [...]any{nil, "calendar", n}
	return b, ok
}

// Leave has so many tokens, fewer than it holds, be left in the bucket: it is the same one, and takes no more than the others.
func (b *Bucket) Leave(tokens int64) {
	b.Burst -= tokens
	b.Whole, b.Capacity, b.Floor = b.Burst, b.Capacity-tokens*b.Cost, b.Floor+tokens*b.Cost
	b.Args[2] = b.Capacity
}

// Left returns for how many milliseconds a window that begins now goes on.
func (b *Bucket) Left(unixMS int64) int64 {
	if b.Ends == 0 {
		return b.Period
	}
	return max(1, b.Ends-unixMS)
}

// Timed returns the first of the buckets whose tokens come back by the clock of their store, or -1 if there is none.
func Timed(buckets []Bucket) int {
	for i := range buckets {
		if buckets[i].Ends == 0 && buckets[i].Kind != Slots {
			return i
		}
	}
	return -1
}

// Tokens reports whether all of the buckets are token buckets.
func Tokens(buckets []Bucket) bool {
	for i := range buckets {
		if buckets[i].Kind != Token {
			return false
		}
	}
	return true
}

// Same reports whether two lists of buckets are of the same limits.
func Same(a, b []Bucket) bool {
	if len(a) != len(b) {
		return false
	}
	if &a[0] == &b[0] { // of one policy
		return true
	}
	for i := range a {
		a, b := &a[i], &b[i]
		if a.Capacity != b.Capacity || a.Cost != b.Cost || a.Drain != b.Drain || a.Whole != b.Whole || a.Kind != b.Kind || a.ID != b.ID {
			return false
		}
	}
	return true
}

// rate returns the tokens that come back per period.
func (b *Bucket) rate() int64 {
	if b.Kind != Token {
		return b.Burst
	}
	return b.Drain * (b.Period / b.Cost)
}

// Share returns the bucket of one of so many processes that share the limit evenly: rate and burst divided by their
// number, rounded down, but at least 1; and so are slots.
func (b *Bucket) Share(processes int64) Bucket {
	if b.Guards() {
		share := *b
		if b.Kind == Slots {
			share.Capacity = max(1, b.Capacity/processes)
		}
		return share
	}
	rate, burst := max(1, b.rate()/processes), max(1, (b.Burst+b.Floor/b.Cost)/processes)
	own := max(1, b.Burst/processes) // the rest is its part of the floor
	share, ok := New(b.Kind, b.ID, rate, burst, b.Period)
	if !ok { // a divided rate may need units too small: then it is divided a little more
		if rate >= b.Period {
			rate -= rate % b.Period // a whole number of tokens per millisecond
		} else {
			burst = min(burst, MaxUnits/2/b.Period)
		}
		share, _ = New(b.Kind, b.ID, rate, burst, b.Period) // it fits now
	}
	if own < burst {
		share.Leave(burst - own)
	}
	if share.Ends = b.Ends; b.Ends == 0 { // the next calendar period would not owe what this one has given
		share.Whole = b.Whole
	}
	return share
}

// Charge returns the units that n tokens weigh, more than any level leaves room for if the bucket never holds so many.
func (b *Bucket) Charge(n int64) int64 {
	switch most := MaxUnits - b.Drain - b.Capacity; {
	case n <= b.Burst:
		return n * b.Cost
	case n > b.Whole:
		return b.Capacity + 1
	case n > most/b.Cost:
		return max(b.Capacity, most) // as many as can be counted on top of what is missing
	default:
		return n * b.Cost
	}
}

// Room returns how far below its capacity a bucket must be for a charge of n tokens.
func (b *Bucket) Room(n int64) int64 {
	if n > b.Whole {
		return b.Charge(n)
	}
	return min(n, b.Burst) * b.Cost
}

// Fit returns how many of the charges, each of n tokens, the level found leaves room for.
func (b *Bucket) Fit(level, charges, n int64) int64 {
	if b.Guards() {
		return b.fitGuard(level, charges)
	}
	if level >= b.Capacity || n > b.Whole {
		return 0
	}
	return min(charges, (b.Capacity-level)/b.Room(n))
}

// Debt returns how many of n tokens may be charged at a level, though there is no room: up to a burst more than all.
func (b *Bucket) Debt(level, n int64) int64 {
	most := min(2*(b.Capacity+b.Floor), MaxUnits-b.Drain)
	if b.Kind == SlidingWindow {
		most = min(most, MaxLogged)
	}
	return min(n, max(0, most-level)/b.Cost)
}

// Charged returns the state after so many charges of n tokens, of which there is at least one.
func (b *Bucket) Charged(s State, charges, n int64) State {
	switch b.Kind {
	case Slots:
		s.Level += charges
		return s
	case Ban:
		return s
	}
	s.Level += charges * b.Charge(n)
	if end := b.Period + b.Overdraft(n); b.Kind == SlidingWindow {
		s.Reset = max(s.Reset, end)
	} else if s.Reset == 0 {
		s.Reset = end
	}
	if s.Soon == 0 {
		s.Soon = b.Period
	}
	return s
}

// Overdraft returns for how many milliseconds longer than others a charge of n tokens counts in a window that never
// holds so many.
func (b *Bucket) Overdraft(n int64) int64 {
	if n <= b.Burst || n > b.Whole {
		return 0
	}
	return min(CeilDiv(n, b.Burst)-1, MaxUnits/b.Period-1) * b.Period
}

// Remaining returns the whole tokens left at a level.
func (b *Bucket) Remaining(level int64) int64 { return max(0, b.Capacity-level) / b.Cost }

// RetryAfter returns in how many milliseconds a charge of n tokens fits, 0 if it does, and [Never] if the bucket never
// holds so many.
func (b *Bucket) RetryAfter(s State, n int64) int64 {
	switch {
	case b.Guards():
		return b.waitGuard(s)
	case n > b.Whole:
		return Never
	case b.Kind != Token:
		return s.Wait
	}
	return b.duration(s.Level + b.Room(n) - b.Capacity)
}

// ResetAfter returns in how many milliseconds the bucket is full.
func (b *Bucket) ResetAfter(s State) int64 {
	switch {
	case b.Guards():
		return b.waitGuard(s)
	case b.Ends != 0 && s.Level == 0: // its period ends all the same
		return 0
	case b.Kind != Token:
		return s.Reset
	}
	return b.duration(s.Level)
}

// MoreAfter returns in how many milliseconds the bucket has another whole token, 0 if it is full.
func (b *Bucket) MoreAfter(s State) int64 {
	switch {
	case b.Guards():
		return b.waitGuard(s)
	case b.Ends != 0 && s.Level == 0:
		return 0
	case b.Kind != Token:
		return s.Soon
	}
	return b.duration(s.Level - (b.Capacity - min(b.Remaining(s.Level)+1, b.Burst)*b.Cost))
}

// FillTime returns in how many milliseconds the bucket regains all that it holds.
func (b *Bucket) FillTime() int64 {
	if b.Kind != Token {
		return b.Period
	}
	return b.duration(b.Capacity)
}

// After returns the state so many milliseconds later, without a charge. Of a window it keeps the tokens taken.
func (b *Bucket) After(s State, ms int64) State {
	s.Level = max(0, s.Level-b.Drain*ms)
	s.Soon, s.Wait, s.Reset = max(0, s.Soon-ms), max(0, s.Wait-ms), max(0, s.Reset-ms)
	switch {
	case b.Kind == Ban: // one that a refusal has caused, too
		s.Level = s.Wait
	case b.Kind == Slots, b.Kind != Token && s.Reset == 0: // slots may all be free by now
		s.Level = 0
	}
	return s
}

// Refuses reports whether a bucket that refused a charge of n tokens in a state still does so many milliseconds later.
func (b *Bucket) Refuses(s State, ms, n int64) bool {
	if b.Kind == Slots { // a slot may be free at any moment
		return false
	}
	if b.Kind != Token {
		return s.Wait > ms
	}
	return b.Fit(s.Level-b.Drain*ms, 1, n) == 0
}

// duration returns in how many milliseconds so many units have flowed back.
func (b *Bucket) duration(units int64) int64 {
	if units <= 0 {
		return 0
	}
	return CeilDiv(units, b.Drain)
}

// BlockLevel returns the lowest level from which not one token is to be had for so many milliseconds, or for
// [Bucket.MaxBlock] of them.
func (b *Bucket) BlockLevel(ms int64) int64 {
	return b.Capacity + b.Floor - b.Cost + min(ms, b.MaxBlock())*b.Drain
}

// MaxBlock returns for how many milliseconds the bucket can be blocked.
func (b *Bucket) MaxBlock() int64 {
	if b.Kind != Token {
		return MaxUnits // longer than any Duration
	}
	return (MaxUnits - b.Drain - b.Capacity - b.Floor) / b.Drain
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// CeilDiv divides a number that is not negative by a positive one and rounds up. Their sum may pass the largest integer.
func CeilDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}
