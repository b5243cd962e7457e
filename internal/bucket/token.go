package bucket

var token = kind{integers: 1, leasable: true, module: "token"}

// drained returns the units that flow back in ns nanoseconds, rounded up.
func (b *Bucket) drained(ns int64) int64 {
	us := CeilDiv(ns, 1000)
	if us > MaxUnits/b.Drain {
		return MaxUnits
	}
	return CeilDiv(us*b.Drain, 1000)
}
