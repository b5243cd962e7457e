package bucket

var token = kind{integers: 1, leasable: true, module: "token"}

// duration returns in how many milliseconds a token bucket regains units.
func (b *Bucket) duration(units int64) int64 {
	if units <= 0 {
		return 0
	}
	return (units-1)/b.Drain + 1
}

// drained returns the units that flow back in ns nanoseconds, rounded up.
func (b *Bucket) drained(ns int64) int64 {
	us := CeilDiv(ns, 1000)
	if us > MaxUnits/b.Drain {
		return MaxUnits
	}
	return CeilDiv(us*b.Drain, 1000)
}
