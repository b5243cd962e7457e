package bucket

// Leave reserves tokens, fewer than Burst, for others. It stays the same bucket: other policies may
// take the reserved tokens.
func (b *Bucket) Leave(tokens int64) {
	b.Burst -= tokens
	b.Whole, b.Capacity, b.Floor = b.Burst, b.Capacity-tokens*b.Cost, b.Floor+tokens*b.Cost
	b.Args[2] = b.Capacity
}

// rate returns the tokens that come back per period.
func (b *Bucket) rate() int64 {
	if b.Drain == 0 {
		return b.Burst
	}
	return b.Drain * (b.Period / b.Cost)
}

// Share returns the bucket of one of several processes that share the limit evenly. It divides the
// rate and the burst, or the slots, by their number. It rounds down, but at least to 1.
func (b *Bucket) Share(processes int64) Bucket {
	if !b.IsLimit() {
		share := *b
		if kinds[b.Kind].divided {
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
