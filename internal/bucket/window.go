package bucket

var (
	fixedWindow = kind{
		integers: 5, leasable: true, module: "fixed",
		charged: chargedWindow, waits: windowWaits, lapsed: windowLapsed,
	}
	slidingWindow = kind{
		integers: 5, module: "sliding", most: MaxLogged,
		charged: chargedWindow, waits: windowWaits, lapsed: windowLapsed,
	}
)

// chargedWindow ends a window a period after its first charge, or after its last if it slides.
func chargedWindow(b *Bucket, s State, charges, n int64) State {
	s.Level += charges * b.Charge(n)
	if s.Reset == 0 || b.Kind == SlidingWindow {
		s.Reset = max(s.Reset, b.Period+b.Overdraft(n))
	}
	if s.More == 0 {
		s.More = b.Period
	}
	return s
}

// windowWaits are the waits of a window, of which a State says all.
func windowWaits(b *Bucket, s State, _ int64) (retry, reset, more int64) {
	if b.Ends != 0 && s.Level == 0 { // it is full, though its period goes on
		return s.Wait, 0, 0
	}
	return s.Wait, s.Reset, s.More
}

func windowLapsed(s State) State {
	if s.Reset == 0 {
		s.Level = 0
	}
	return s
}

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
