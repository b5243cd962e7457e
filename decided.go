package ginlimit

import (
	"github.com/gin-gonic/gin"
)

// decided is what the handlers of a request decided up to one of them. It is not changed once it is set, as a
// copy of the [gin.Context] has the same one.
type decided struct {
	result Result   // the one closest to exhaustion
	told   Result   // of those that the headers may tell, where isTold
	isTold bool     // one of them is no dry run
	by     *handler // of the last decision
	key    uint64   // the hash of the key that it charged, 0 if none
	rules  *rules   // by which
	before *decided
	fields fields // that tell the last decision, where it is the one to tell
}

// decidedKey is where a [gin.Context] keeps what was decided last.
type decidedKey struct{}

// decidedOn returns what was decided on a request, or nil.
func decidedOn(c *gin.Context) *decided {
	v, _ := c.Get(decidedKey{})
	d, _ := v.(*decided)
	return d
}

// record keeps a Result, and sets the headers if it is the one to tell.
func (h *handler) record(c *gin.Context, d decision) {
	now, result := h.note(c, d), d.result
	if h.dryRun {
		return
	}
	before := now.before
	if before != nil && before.isTold && result.Allowed && before.told.closerThan(result) {
		return
	}
	now.told, now.isTold = result, true
	header := c.Writer.Header()
	now.fields.set(header, result)
	if result.Source == FromLocal && h.limiter.source != FromLocal {
		header[headerStatus] = []string{"degraded"}
	}
	if h.header != nil {
		h.header(header, result)
	}
}

// note keeps a Result, and warns if the same bucket has been charged already.
func (h *handler) note(c *gin.Context, d decision) *decided {
	before := decidedOn(c)
	now := &decided{result: d.result, by: h, key: d.hash, rules: d.rules, before: before}
	if before != nil {
		now.told, now.isTold = before.told, before.isTold
		if d.result.Allowed && before.result.closerThan(d.result) {
			now.result = before.result
		}
	}
	for other := before; other != nil && now.key != 0; other = other.before {
		if other.key == now.key && now.shares(other) && !h.warned.Swap(true) {
			h.logger.WarnContext(c.Request.Context(),
				"ginlimit: two handlers charge one bucket for one request; if that is not meant, name one of them with WithName",
				"name", h.name)
		}
	}
	c.Set(decidedKey{}, now)
	return now
}

// shares reports whether two decisions on one key were on a bucket that they have in common.
func (d *decided) shares(other *decided) bool {
	if d.by.limiter.store.String() != other.by.limiter.store.String() {
		return false
	}
	for i := range d.rules.buckets {
		for j := range other.rules.buckets {
			if d.rules.buckets[i].period == other.rules.buckets[j].period {
				return true
			}
		}
	}
	return false
}
