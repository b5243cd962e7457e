package bucket

// Charge returns the units that n tokens weigh. If the bucket never holds n tokens, that is more
// than any level leaves room for.
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

// Fits returns how many of the charges, each of n tokens, have room in a state.
func (b *Bucket) Fits(s State, charges, n int64) int64 {
	if fits := kinds[b.Kind].fits; fits != nil {
		return fits(b, s, charges, n)
	}
	if s.Level >= b.Capacity || n > b.Whole {
		return 0
	}
	return min(charges, (b.Capacity-s.Level)/(min(n, b.Burst)*b.Cost))
}

// Debt returns how many of n tokens a Charge takes at a level without room. A bucket may owe one
// more burst than it holds.
func (b *Bucket) Debt(level, n int64) int64 {
	most := min(2*(b.Capacity+b.Floor), b.maxLevel())
	return min(n, max(0, most-level)/b.Cost)
}

// maxLevel returns the highest level that can be counted.
func (b *Bucket) maxLevel() int64 {
	if most := kinds[b.Kind].most; most > 0 {
		return most
	}
	return MaxUnits - b.Drain
}

// Charged returns the state after one or more charges of n tokens.
func (b *Bucket) Charged(s State, charges, n int64) State {
	if charged := kinds[b.Kind].charged; charged != nil {
		return charged(b, s, charges, n)
	}
	s.Level += charges * b.Charge(n)
	return s
}

// Remaining returns the whole tokens left at a level.
func (b *Bucket) Remaining(level int64) int64 { return max(0, b.Capacity-level) / b.Cost }

// Status is what is left of a bucket in a state, and in how many milliseconds there is more. What is so already is 0.
type Status struct {
	Remaining int64 // whole tokens
	Retry     int64 // until a charge fits; Never of more tokens than the bucket ever holds
	Reset     int64 // until it is full
	More      int64 // until it has another whole token
}

// Status returns the status of a state, for a charge of n tokens.
func (b *Bucket) Status(s State, n int64) Status {
	free := b.Capacity - s.Level
	status := Status{Remaining: max(0, free) / b.Cost}
	if waits := kinds[b.Kind].waits; waits != nil {
		status.Retry, status.Reset, status.More = waits(b, s, n)
	} else {
		status.Retry, status.Reset = b.duration(min(n, b.Burst)*b.Cost-free), b.duration(s.Level)
		status.More = b.duration(min(status.Remaining+1, b.Burst)*b.Cost - free)
		if s.Wait > 0 { // see Hold
			status.Retry = s.Wait
		}
	}
	if n > b.Whole {
		status.Retry = Never
	}
	return status
}

// duration returns in how many milliseconds a token bucket regains units.
func (b *Bucket) duration(units int64) int64 {
	if units <= 0 {
		return 0
	}
	return (units-1)/b.Drain + 1
}

// FillTime returns in how many milliseconds an empty bucket is full, with what stays for others.
func (b *Bucket) FillTime() int64 {
	if b.Drain == 0 {
		return b.Period
	}
	return b.duration(b.Capacity + b.Floor)
}

// After returns the state ms milliseconds later, if nothing is charged. A window keeps the tokens
// taken.
func (b *Bucket) After(s State, ms int64) State {
	s.Level = max(0, s.Level-b.Drain*ms)
	s.More, s.Wait, s.Reset = max(0, s.More-ms), max(0, s.Wait-ms), max(0, s.Reset-ms)
	if lapsed := kinds[b.Kind].lapsed; lapsed != nil {
		return lapsed(s)
	}
	return s
}

// Denies reports whether a state denies a charge of n tokens, by the time until one fits.
func (b *Bucket) Denies(s State, n int64) bool {
	return b.Status(s, n).Retry > 0
}

// BlockLevel returns the lowest level that leaves no token for ms milliseconds, or for
// [Bucket.MaxBlock] if that is shorter.
func (b *Bucket) BlockLevel(ms int64) int64 {
	return b.Capacity + b.Floor - b.Cost + min(ms, b.MaxBlock())*b.Drain
}

// MaxBlock returns for how many milliseconds the bucket can be blocked.
func (b *Bucket) MaxBlock() int64 {
	if b.Drain == 0 {
		return MaxUnits // longer than any Duration
	}
	return (MaxUnits - b.Drain - b.Capacity - b.Floor) / b.Drain
}
