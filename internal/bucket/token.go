package bucket

var token = kind{
	integers: 1, leasable: true, module: "token", fits: fitsTokens, charged: chargedTokens,

	retryAfter: func(b *Bucket, level, wait, n int64) int64 {
		if wait > 0 {
			return wait
		}
		return b.duration(level + b.Room(n) - b.Capacity)
	},
	resetAfter: func(b *Bucket, level, _, _ int64) int64 { return b.duration(level) },
	moreAfter: func(b *Bucket, level, _, _ int64) int64 {
		return b.duration(level - (b.Capacity - min(b.Remaining(level)+1, b.Burst)*b.Cost))
	},
	denies: func(b *Bucket, s State, ms, n int64) bool {
		return fitsTokens(b, s.Level-b.Drain*ms, nil, 1, n) == 0
	},
}

// fitsTokens is how many charges have room, also in windows.
func fitsTokens(b *Bucket, level int64, _ *Shares, charges, n int64) int64 {
	if level >= b.Capacity || n > b.Whole {
		return 0
	}
	return min(charges, (b.Capacity-level)/b.Room(n))
}

func chargedTokens(b *Bucket, s State, charges, n int64) State {
	s.Level += charges * b.Charge(n)
	return s
}

// duration returns in how many milliseconds a token bucket regains units.
func (b *Bucket) duration(units int64) int64 {
	if units <= 0 {
		return 0
	}
	return CeilDiv(units, b.Drain)
}

// drained returns the units that flow back in ns nanoseconds, rounded up.
func (b *Bucket) drained(ns int64) int64 {
	us := CeilDiv(ns, 1000)
	if us > MaxUnits/b.Drain {
		return MaxUnits
	}
	return CeilDiv(us*b.Drain, 1000)
}
