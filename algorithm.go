package ginlimit

// Algorithm tells how requests are counted.
type Algorithm uint8

const (
	// TokenBucket has a bucket regain Rate tokens per Period, evenly spread, up to Burst. It takes the same room in
	// Redis whatever the limit is, and over any time t admits no more than Burst + Rate × t.
	TokenBucket Algorithm = iota
	// FixedWindow counts up to Rate requests in a window. It begins with a client's first request, and ends a Period
	// later. Around that end twice the Rate may pass at once.
	FixedWindow
	// SlidingWindow counts up to Rate requests in the last Period, whenever that ends. It keeps a log of them, in
	// Redis 6 to 16 bytes for each, of up to Rate entries and no more than there are milliseconds in the Period.
	SlidingWindow
)

var algorithmNames = [...]string{TokenBucket: "token bucket", FixedWindow: "fixed window", SlidingWindow: "sliding window"}

// String returns the algorithm in two words, or "unknown".
func (a Algorithm) String() string {
	if int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	return "unknown"
}
