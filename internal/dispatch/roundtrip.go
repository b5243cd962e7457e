package dispatch

import "time"

const (
	// highLatency is the round trip from which on the latency of a server is high.
	highLatency = 500 * time.Microsecond
	// maxMeasured is how many calls a measured batch may have: a larger one takes the server longer.
	maxMeasured = 4
	// minMeasured is how many batches must have been measured: the first ones may have made a
	// connection.
	minMeasured = 8
)

// roundTrip estimates the round trip to a server as the least time that a small batch took lately.
// The zero roundTrip knows nothing, and the latency is not high.
type roundTrip struct {
	least    time.Duration // 0 is not known
	measured int           // batches, up to minMeasured
}

// measure notes how long an answered batch took, and its number of calls.
func (r *roundTrip) measure(took time.Duration, calls int) {
	switch took = max(1, took); {
	case calls > maxMeasured:
		return
	case r.least == 0 || took < r.least:
		r.least = took
	default:
		r.least += (took - r.least) / 16
	}
	r.measured = min(r.measured+1, minMeasured)
}

// high reports whether the latency of the server is high.
func (r *roundTrip) high() bool { return r.least >= highLatency && r.measured >= minMeasured }
