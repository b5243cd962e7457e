package dispatch

import "time"

const (
	// maxInline is the longest timeout for which a caller sends its call itself, since it then does
	// not look at the end of its context.
	maxInline = 100 * time.Millisecond
	// inlinePause is for how long no caller sends its call itself after two such calls within that time
	// have outlived their contexts. It doubles, up to maxInlinePause, if that happens again soon.
	inlinePause, maxInlinePause = time.Minute, 8 * time.Minute
	// inlineGrace is how much later than its context such a call may be on a busy machine.
	inlineGrace = 10 * time.Millisecond
)

// inlinePauses are times in which no call is sent inline, because some that were have outlived their
// contexts. They have no lock of their own: their owner, a dispatcher, calls them behind its lock.
type inlinePauses struct {
	end     time.Time     // of the last pause
	overrun time.Time     // when the last call was noticed that began no long pause
	longEnd time.Time     // of the last pause that begin made
	long    time.Duration // how long that one was made
}

// beginShort begins a pause after a call that was sent inline and not answered in time: perhaps it
// needed a new connection, which only a batch that a goroutine sends has the time to make.
func (p *inlinePauses) beginShort(now time.Time) {
	if end := now.Add(connectTimeout); end.After(p.end) {
		p.end = end
	}
}

// begin begins a pause after a call that was sent inline at a time and outlived its context. It is a
// long one if that is the second such call. It is twice the last long one, unless calls were sent
// inline for as long as that one since it ended. A call that was sent before the last one was noticed,
// or before the last long pause, is no second and doubles nothing: both were late at once.
func (p *inlinePauses) begin(sentAt, now time.Time) {
	good := sentAt.Sub(p.longEnd)
	if gap := sentAt.Sub(p.overrun); good >= 0 && (gap < 0 || gap > inlinePause) {
		p.overrun = now
		p.beginShort(now)
		return
	}
	switch {
	case good < 0:
	case good < p.long:
		p.long = min(2*p.long, maxInlinePause)
	default:
		p.long = inlinePause
	}
	p.overrun = time.Time{}
	p.longEnd = now.Add(p.long)
	p.end = p.longEnd
}

// pauseInlineLocked begins a pause after a call that was sent inline and was late. It may be a long one if the call
// went on after its context had ended: beyond the limit a hook, for example, does not end with the context.
func (d *Dispatcher) pauseInlineLocked(within *deadline, sentAt, now time.Time) {
	limit := d.timeout.span + 2*d.timeout.span/slackPart + inlineGrace
	if now.Sub(sentAt) > limit && within.outlived(now) {
		d.inline.begin(sentAt, now)
	} else {
		d.inline.beginShort(now)
	}
}
