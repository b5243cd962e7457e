package dispatch

import "time"

const (
	// maxFailures is how many failures in a row open the breaker.
	maxFailures = 3
	// failureGap is how soon after a failure another one counts, or half a timeout where that is
	// sooner.
	failureGap = 25 * time.Millisecond
)

// breakerState is what the breaker lets pass.
type breakerState uint8

const (
	closed   breakerState = iota // every call
	open                         // no call; the prober looks whether the server is back
	halfOpen                     // every call, but one failure opens it again
)

// breaker keeps callers from waiting for a server that does not answer. It has no clock and no lock
// of its own: its owner, a dispatcher, calls it behind its lock and says what time it is.
//
//	state      failed                        answered   found
//	closed     open, at the third in a row   closed     –
//	open       open                          open       half-open
//	half-open  open                          closed     –
//
// A call has failed if the server answers nobody, and answered if it answers in time. The prober
// calls found when a probe was answered in time. Failures that may have one cause count as one, as
// when a proxy cuts all connections: the failures of calls in flight when another one failed,
// however late they are noticed, and those soon after it.
type breaker struct {
	state    breakerState
	gap      time.Duration // how soon after a failure another one counts
	failures int           // in a row, while closed
	last     time.Time     // when the last failure that counted was noticed
}

func newBreaker(timeout time.Duration) breaker { return breaker{gap: min(timeout/2, failureGap)} }

// failed notes that a call failed, and reports whether that has opened the breaker.
func (b *breaker) failed(sent, now time.Time) (opened bool) {
	if b.state == open || !sent.After(b.last) || now.Sub(b.last) < b.gap {
		return false
	}
	b.failures, b.last = b.failures+1, now
	if b.state == closed && b.failures < maxFailures {
		return false
	}
	b.state = open
	return true
}

// answered notes that a call was answered in time, and reports whether that has closed the breaker.
// A call that was sent before the breaker opened says nothing new.
func (b *breaker) answered() (changed bool) {
	if b.state == open {
		return false
	}
	changed = b.state == halfOpen
	b.state, b.failures = closed, 0
	return changed
}

// found notes that a probe was answered in time.
func (b *breaker) found() {
	if b.state == open {
		b.state, b.last = halfOpen, time.Time{}
	}
}

// Transition is a change of a breaker's state.
type Transition struct {
	To     string // "open", "half_open" or "closed"
	Reason string // a word for what has opened it; else ""
}

func (s breakerState) String() string {
	return [...]string{closed: "closed", open: "open", halfOpen: "half_open"}[s]
}
