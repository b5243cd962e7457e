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

// Fit returns how many of the charges, each of n tokens, have room above a level.
func (b *Bucket) Fit(level, charges, n int64) int64 {
	switch b.Kind {
	case Slots:
		return b.fitSlots(level, charges)
	case Ban:
		return fitBan(level, charges)
	}
	if level >= b.Capacity || n > b.Whole {
		return 0
	}
	return min(charges, (b.Capacity-level)/b.Room(n))
}

// Fits is [Bucket.Fit] in a state.
func (b *Bucket) Fits(s State, charges, n int64) int64 {
	if b.Kind == Tenants {
		return b.fitTenant(s, charges, n)
	}
	return b.Fit(s.Level, charges, n)
}

// Debt returns how many of n tokens a Charge takes at a level without room. A bucket may owe one
// more burst than it holds.
func (b *Bucket) Debt(level, n int64) int64 {
	most := min(2*(b.Capacity+b.Floor), MaxUnits-b.Drain)
	if b.Kind == SlidingWindow {
		most = min(most, MaxLogged)
	}
	return min(n, max(0, most-level)/b.Cost)
}

// Charged returns the state after one or more charges of n tokens.
func (b *Bucket) Charged(s State, charges, n int64) State {
	switch b.Kind {
	case Slots:
		s.Level += charges
		return s
	case Ban:
		return s
	case Tenants:
		return b.chargedTenant(s, charges, n)
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

// Remaining returns the whole tokens left at a level.
func (b *Bucket) Remaining(level int64) int64 { return max(0, b.Capacity-level) / b.Cost }

// RetryAfter returns in how many milliseconds a charge of n tokens fits. It is 0 if it fits now,
// and [Never] if the bucket never holds n tokens.
func (b *Bucket) RetryAfter(s State, n int64) int64 {
	switch {
	case !b.IsLimit():
		return b.freeAfter(s)
	case n > b.Whole:
		return Never
	case b.Kind != Token || s.Wait > 0:
		return s.Wait
	}
	return b.duration(s.Level + b.Room(n) - b.Capacity)
}

// ResetAfter returns in how many milliseconds the bucket is full.
func (b *Bucket) ResetAfter(s State) int64 {
	switch {
	case !b.IsLimit():
		return b.freeAfter(s)
	case b.Ends != 0 && s.Level == 0: // it is full, though its period goes on
		return 0
	case b.Kind != Token:
		return s.Reset
	}
	return b.duration(s.Level)
}

// MoreAfter returns in how many milliseconds the bucket has another whole token, 0 if it is full.
func (b *Bucket) MoreAfter(s State) int64 {
	switch {
	case b.Kind == Tenants:
		return b.moreForTenant(s)
	case !b.IsLimit():
		return b.freeAfter(s)
	case b.Ends != 0 && s.Level == 0:
		return 0
	case b.Kind != Token:
		return s.Soon
	}
	return b.duration(s.Level - (b.Capacity - min(b.Remaining(s.Level)+1, b.Burst)*b.Cost))
}

// freeAfter returns in how many milliseconds a ban, slots or tenants admit a charge.
func (b *Bucket) freeAfter(s State) int64 {
	if b.Kind == Slots {
		return b.slotAfter(s)
	}
	return s.Wait
}

// FillTime returns in how many milliseconds an empty bucket is full.
func (b *Bucket) FillTime() int64 {
	if b.Kind != Token {
		return b.Period
	}
	return b.duration(b.Capacity)
}

// After returns the state ms milliseconds later, if nothing is charged. A window keeps the tokens
// taken.
func (b *Bucket) After(s State, ms int64) State {
	s.Level = max(0, s.Level-b.Drain*ms)
	s.Soon, s.Wait, s.Reset = max(0, s.Soon-ms), max(0, s.Wait-ms), max(0, s.Reset-ms)
	switch {
	case b.Kind == Tenants: // their level is the limit's
	case b.Kind == Ban: // also a ban that a denial has just caused
		s.Level = s.Wait
	case b.Kind == Slots, b.Kind != Token && s.Reset == 0: // slots may all be free by now
		s.Level = 0
	}
	return s
}

// Denies reports whether a bucket that denied a charge of n tokens in a state still denies it ms
// milliseconds later.
func (b *Bucket) Denies(s State, ms, n int64) bool {
	if b.Kind == Slots { // a slot may become free at any moment
		return false
	}
	if b.Kind == Tenants { // its wait is rounded up: a charge may fit before
		return s.Wait > ms && b.fitTenant(b.After(s, ms), 1, n) == 0
	}
	if b.Kind != Token {
		return s.Wait > ms
	}
	return b.Fit(s.Level-b.Drain*ms, 1, n) == 0
}

// BlockLevel returns the lowest level that leaves no token for ms milliseconds, or for
// [Bucket.MaxBlock] if that is shorter.
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
