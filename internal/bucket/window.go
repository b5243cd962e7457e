package bucket

// MaxLogged is 2^52 - 1, the most tokens in the log of a sliding window (see kind/sliding.lua).
const MaxLogged = 1<<52 - 1

// MaxRewritten is the most entries of such a log that a script rewrites to give tokens back.
const MaxRewritten = 500

// Overdraft returns for how many milliseconds longer a charge above the window's limit counts.
func (b *Bucket) Overdraft(n int64) int64 {
	if n <= b.Burst || n > b.Whole {
		return 0
	}
	return min(CeilDiv(n, b.Burst)-1, MaxUnits/b.Period-1) * b.Period
}
