package ginlimit

// Failure chooses what happens when Redis makes no decision: it is unavailable, late, or refuses.
type Failure uint8

const (
	// FailLocal has this process decide, by buckets of its own that hold and regain its share of each limit (see
	// [WithReplicas]). They start full, and are kept when Redis is back, so that an outage that follows soon
	// gives nobody another burst. A decision on more tokens than the share holds is made when it is full, and
	// leaves it as much longer to fill up.
	FailLocal Failure = iota
	// FailOpen allows, as if every bucket were full, and also what is blocked.
	FailOpen
	// FailClosed makes no decision: the error is [ErrUnavailable], which a handler answers with 503.
	FailClosed
)

// String returns the failure in one word, or "unknown".
func (f Failure) String() string {
	names := [...]string{FailLocal: "local", FailOpen: "open", FailClosed: "closed"}
	if int(f) < len(names) {
		return names[f]
	}
	return "unknown"
}
