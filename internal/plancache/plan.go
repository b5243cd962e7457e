package plancache

import (
	"strings"
	"time"
)

// plan is the state of a client. The zero plan is empty. A plan is immutable once it is shared.
type plan[T any] struct {
	value    T
	err      error     // why there is no value: Unknown, or the source's failure
	until    time.Time // the process reads Redis again then
	ends     time.Time // the end of its life; its retention follows
	invalid  bool      // Invalidate has ended its life
	newer    bool      // Redis may keep an older plan, because it may have missed an Invalidate
	stored   bool      // Redis has stored it
	retained bool      // Redis keeps it for the retention after its life
	token    string    // when the source was queried; "" for a plan from Redis, or without a token
}

// fresh reports whether the plan may be used without querying the source.
func (p *plan[T]) fresh(now time.Time) bool { return !p.invalid && now.Before(p.ends) }

// usable reports whether the plan may be used while the source fails.
func (p *plan[T]) usable(now time.Time) bool { return now.Before(p.ends.Add(retention)) }

// usedUntil returns the plan for use until recheck or an end, whichever is first.
func (p *plan[T]) usedUntil(now, end time.Time) *plan[T] {
	next := *p
	next.until = now.Add(recheck)
	if end.Before(next.until) {
		next.until = end
	}
	return &next
}

const (
	unknownText = "unknown" // the text for a client without a plan
	shortPrefix = "short "  // marks a plan that expires after its life, without retention
)

// decode parses the text of a plan that expires after left. It returns the zero plan for an empty
// or a foreign text.
func (c *Cache[T]) decode(text string, now time.Time, left time.Duration) plan[T] {
	text, short := strings.CutPrefix(text, shortPrefix)
	shared := plan[T]{stored: true, retained: !short && text != unknownText}
	if shared.retained {
		left -= retention
	}
	shared.ends = now.Add(min(left, c.config.Life)) // another process may have a longer life
	var err error
	switch text {
	case "":
		return plan[T]{}
	case unknownText:
		shared.err = c.config.Unknown
		return shared
	}
	if shared.value, err = c.config.Unmarshal(text); err != nil {
		return plan[T]{}
	}
	return shared
}

// encode returns the text for decode, and how long Redis keeps it.
func (c *Cache[T]) encode(answer plan[T]) (string, time.Duration) {
	if answer.err != nil {
		return unknownText, c.config.Life
	}
	text := c.config.Marshal(answer.value)
	if answer.retained {
		return text, c.config.Life + retention
	}
	return shortPrefix + text, c.config.Life
}
