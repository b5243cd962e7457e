package plancache

import (
	"strings"
	"time"
)

// plan is what is known of a client. The zero plan is nothing. A plan does not change once it is
// shared.
type plan[T any] struct {
	value   T
	err     error     // why there is no value: Unknown, or the source's failure
	until   time.Time // the process uses the plan without asking Redis until then
	ends    time.Time // the end of its life; it serves for a rest longer while the source fails
	invalid bool      // Invalidate has ended its life
	ahead   bool      // Redis may keep an older plan, as it may have missed an Invalidate
	stored  bool      // Redis has stored it
	rested  bool      // Redis keeps it for a rest after its life
	token   string    // the token when the source was asked; "" if the plan is from Redis, or there was none
}

// lives reports whether the plan may be used without asking the source.
func (p *plan[T]) lives(now time.Time) bool { return !p.invalid && now.Before(p.ends) }

// serves reports whether the plan may be used while the source fails.
func (p *plan[T]) serves(now time.Time) bool { return now.Before(p.ends.Add(rest)) }

// goBy returns the plan as the process uses it until it reads Redis again, or until an end.
func (p *plan[T]) goBy(now, end time.Time) *plan[T] {
	next := *p
	next.until = now.Add(recheck)
	if end.Before(next.until) {
		next.until = end
	}
	return &next
}

const (
	unknownText = "unknown" // the text for a client without a plan
	shortPrefix = "short "  // begins a plan that expires after its life; others expire a rest later
)

// decode reads the text of a plan that expires after left. No text and a foreign one are the zero
// plan.
func (c *Cache[T]) decode(text string, now time.Time, left time.Duration) plan[T] {
	text, short := strings.CutPrefix(text, shortPrefix)
	kept := plan[T]{stored: true, rested: !short && text != unknownText}
	if kept.rested {
		left -= rest
	}
	kept.ends = now.Add(min(left, c.config.Life)) // another process may have a longer life
	var err error
	switch text {
	case "":
		return plan[T]{}
	case unknownText:
		kept.err = c.config.Unknown
		return kept
	}
	if kept.value, err = c.config.Unmarshal(text); err != nil {
		return plan[T]{}
	}
	return kept
}

// encode returns the text that decode reads, and how long Redis keeps it.
func (c *Cache[T]) encode(answer plan[T]) (string, time.Duration) {
	if answer.err != nil {
		return unknownText, c.config.Life
	}
	text := c.config.Marshal(answer.value)
	if answer.rested {
		return text, c.config.Life + rest
	}
	return shortPrefix + text, c.config.Life
}
