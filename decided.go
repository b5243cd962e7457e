package ginlimit

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
)

// decided is what the handlers of a request decided up to one of them. It says the same once it is set, as a copy of
// the [gin.Context] has the same one.
type decided struct {
	decision Result // of the last one
	by       *handler
	key      uint64 // the hash of the key that it charged, 0 if none
	rules    *rules // by which; nil if the request was not counted
	before   *decided

	// Of these and those before, the one closest to exhaustion: of all, and of those that set the same fields.
	closest, byFields, byFunc *decided

	standings standings
	fields    fields
}

// decidedKey is where a [gin.Context] keeps what was decided last.
type decidedKey struct{}

// decidedOn returns what was decided on a request, or nil.
func decidedOn(c *gin.Context) *decided {
	v, _ := c.Get(decidedKey{})
	d, _ := v.(*decided)
	return d
}

// newDecided returns the memory of a decision of the handler.
func (h *handler) newDecided() *decided {
	d := &decided{by: h}
	d.standings.init(h.headers&RateLimitDraft != 0)
	return d
}

// record keeps a decision, and sets the headers.
func (h *handler) record(c *gin.Context, now *decided, d decision) {
	h.fill(c, now, d)
	if !h.dryRun {
		now.tell(c.Writer.Header())
	}
	c.Set(decidedKey{}, now)
}

// note keeps a decision that no headers tell of.
func (h *handler) note(c *gin.Context, d decision) {
	now := h.newDecided()
	h.fill(c, now, d)
	c.Set(decidedKey{}, now)
}

// tell sets the headers of a decision. Where an earlier one is closer to exhaustion, those that tell of one only stay.
func (d *decided) tell(header http.Header) {
	result := d.decision
	if result.Allowed { // as nobody is refused none
		for i := range d.standings.limits {
			d.standings.limits[i].refuses = false
		}
	}
	if d.by.headers&RateLimitDraft != 0 || !result.Allowed {
		d.tellAll(header, !result.Allowed)
	}
	if d.by.headers&XRateLimit != 0 && d.closerThan(d.byFields) {
		d.byFields = d
		d.fields.set(header, result)
	}
	if !result.Allowed {
		d.fields.refuse(header, result)
	}
	if d.by.headers != NoHeaders && result.Source == FromLocal && d.by.limiter.source != FromLocal {
		header[headerStatus] = []string{"degraded"}
	}
	if d.by.header != nil && d.closerThan(d.byFunc) {
		d.byFunc = d
		d.by.header(header, result)
	}
}

// closerThan reports whether a decision is to be told of rather than an earlier one, if there is one.
func (d *decided) closerThan(earlier *decided) bool {
	return earlier == nil || !d.decision.Allowed || !earlier.decision.closerThan(d.decision)
}

// tellAll sets RateLimit-Policy and RateLimit from what all handlers so far have decided on, if they have such. Where
// the request is refused, by a limit or an error, it tells of limits that do not refuse no time: it might be after
// that of Retry-After, and is not what to wait for.
func (d *decided) tellAll(header http.Header, refused bool) {
	var all []*decided
	for ; d != nil; d = d.before {
		if d.by.headers&RateLimitDraft != 0 && !d.by.dryRun && d.rules != nil {
			all = append(all, d)
		}
	}
	if all == nil {
		return
	}
	var policies []string
	var limits []byte
	for _, one := range slices.Backward(all) {
		policies = append(policies, one.rules.policies)
		policies = append(policies, one.by.policies...)
		for _, limit := range one.standings.limits {
			more := limit.more
			if refused && !limit.refuses {
				more = 0
			}
			limits = appendRateLimit(limits, limit.policy.name, limit.remaining, seconds(more))
		}
	}
	policies = slices.DeleteFunc(policies, func(items string) bool { return items == "" })
	if len(policies) > 0 {
		header[headerPolicy] = []string{strings.Join(policies, ", ")}
	}
	if len(limits) > 0 {
		header[headerRateLimit] = []string{string(limits)}
	}
}

// fill completes the memory of a decision, and warns if the same bucket has been charged already.
func (h *handler) fill(c *gin.Context, now *decided, d decision) {
	before := decidedOn(c)
	now.decision, now.key, now.rules, now.before, now.closest = d.result, d.hash, d.rules, before, now
	if before != nil {
		now.byFields, now.byFunc = before.byFields, before.byFunc
		if d.result.Allowed && before.closest.decision.closerThan(d.result) {
			now.closest = before.closest
		}
	}
	for other := before; other != nil && now.key != 0; other = other.before {
		if other.key == now.key && now.shares(other) && !h.warned.Swap(true) {
			h.logger.WarnContext(c.Request.Context(),
				"ginlimit: two handlers charge one bucket for one request; if that is not meant, name one of them with WithName",
				"name", h.name)
		}
	}
}

// shares reports whether two decisions on one key were on a bucket that they have in common.
func (d *decided) shares(other *decided) bool {
	if d.by.limiter.store.String() != other.by.limiter.store.String() {
		return false
	}
	for i := range d.rules.buckets {
		for j := range other.rules.buckets {
			if d.rules.buckets[i].id == other.rules.buckets[j].id {
				return true
			}
		}
	}
	return false
}
