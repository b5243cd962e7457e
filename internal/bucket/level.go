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

// Fit is [Bucket.Fits] at a level, if that is all that a state says.
func (b *Bucket) Fit(level, charges, n int64) int64 {
	return kinds[b.Kind].fits(b, level, nil, charges, n)
}

// Fits returns how many of the charges, each of n tokens, have room in a state.
func (b *Bucket) Fits(s State, charges, n int64) int64 {
	return kinds[b.Kind].fits(b, s.Level, s.Shares, charges, n)
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
	return kinds[b.Kind].charged(b, s, charges, n)
}

// Remaining returns the whole tokens left at a level.
func (b *Bucket) Remaining(level int64) int64 { return max(0, b.Capacity-level) / b.Cost }

// RetryAfter returns in how many milliseconds a charge of n tokens fits. It is 0 if it fits now,
// and [Never] if the bucket never holds n tokens.
func (b *Bucket) RetryAfter(s State, n int64) int64 {
	if n > b.Whole {
		return Never
	}
	return kinds[b.Kind].retryAfter(b, s.Level, s.Wait, n)
}

// ResetAfter returns in how many milliseconds the bucket is full.
func (b *Bucket) ResetAfter(s State) int64 {
	return kinds[b.Kind].resetAfter(b, s.Level, s.Wait, s.Reset)
}

// MoreAfter returns in how many milliseconds the bucket has another whole token, 0 if it is full.
func (b *Bucket) MoreAfter(s State) int64 { return kinds[b.Kind].moreAfter(b, s.Level, s.Wait, s.Soon) }

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
	s.Soon, s.Wait, s.Reset = max(0, s.Soon-ms), max(0, s.Wait-ms), max(0, s.Reset-ms)
	if lapsed := kinds[b.Kind].lapsed; lapsed != nil {
		return lapsed(s)
	}
	return s
}

// Denies reports whether a bucket that denied a charge of n tokens in a state still denies it ms
// milliseconds later.
func (b *Bucket) Denies(s State, ms, n int64) bool { return kinds[b.Kind].denies(b, s, ms, n) }

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
