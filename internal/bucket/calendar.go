package bucket

// Grace is for how many milliseconds a store keeps the tokens taken of a calendar period after its
// end. A call may have begun before the end, and the callers' clocks may differ.
const Grace = 3_600_000

// NewCalendar returns the bucket of n tokens, at least one, of a calendar period. The period lasts
// period milliseconds. It reports false if n is too large to be counted exactly.
func NewCalendar(id string, n, period, ends int64) (Bucket, bool) {
	b, ok := New(FixedWindow, id, n, n, period)
	b.Ends, b.Args = ends, [...]any{nil, "calendar", n}
	return b, ok
}

// Left returns for how many milliseconds a window that begins now goes on.
func (b *Bucket) Left(unixMS int64) int64 {
	if b.Ends == 0 {
		return b.Period
	}
	return max(1, b.Ends-unixMS)
}
