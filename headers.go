package ginlimit

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// Headers selects the header fields that report limits.
type Headers uint8

const (
	// XRateLimit sets X-RateLimit-Limit, -Remaining and -Reset, for the limit closest to exhaustion.
	XRateLimit Headers = 1 << iota
	// RateLimitDraft sets RateLimit-Policy and RateLimit, for every limit.
	//
	// They are the fields of draft-ietf-httpapi-ratelimit-headers-11: q tokens may be taken in w seconds, r are left, and
	// there are more in t seconds. In a refusal only the limits that refuse have t. A limit is named after its policy or
	// identity, followed by the period if there are several limits; without a name, its text is the name. A hyphen
	// replaces what a name cannot contain. If two limits of a response have the same name, the later one ends in -2, -3
	// and so on.
	RateLimitDraft
	// NoHeaders sets none of these fields.
	NoHeaders Headers = 0
)

// The fields of XRateLimit as net/http spells them.
const (
	headerLimit     = "X-Ratelimit-Limit"
	headerRemaining = "X-Ratelimit-Remaining"
	headerReset     = "X-Ratelimit-Reset"
	headerStatus    = "X-Ratelimit-Status" // degraded, if Redis did not decide
)

// fields holds the values of the header fields of one response.
//
// It is part of the request's state, so the fields of most responses allocate nothing but a number above maxNumber.
type fields struct {
	values [7]string
	next   int
}

// maxNumber is the largest number whose text is kept.
const maxNumber = 1<<11 - 1

var numbers = func() (texts [maxNumber + 1]string) {
	for i := range texts {
		texts[i] = strconv.Itoa(i)
	}
	return texts
}()

// set sets the X-RateLimit fields, unless the request is unlimited.
func (f *fields) set(h http.Header, r Result) {
	if r.Limit.Rate < 0 {
		return
	}
	f.number(h, headerLimit, int64(r.Limit.burst()))
	f.number(h, headerRemaining, int64(r.Remaining))
	f.number(h, headerReset, seconds(r.ResetAfter))
}

// refuse sets the fields of a refusal.
func (f *fields) refuse(h http.Header, r Result) {
	if r.RetryAfter > 0 { // below zero, no wait helps
		f.number(h, "Retry-After", seconds(r.RetryAfter))
	}
	f.text(h, "Cache-Control", "no-store")
}

func (f *fields) number(h http.Header, name string, n int64) {
	if n >= 0 && n <= maxNumber {
		f.text(h, name, numbers[n])
	} else {
		f.text(h, name, strconv.FormatInt(n, 10))
	}
}

// text sets a field. Its slice has no spare capacity, so appending to it cannot overwrite the next value.
func (f *fields) text(h http.Header, name, value string) {
	if f.next == len(f.values) {
		h[name] = []string{value}
		return
	}
	f.values[f.next] = value
	h[name] = f.values[f.next : f.next+1 : f.next+1]
	f.next++
}

// seconds returns a duration in whole seconds, rounded up, and 0 for [never].
func seconds(d time.Duration) int64 { return bucket.CeilDiv(int64(max(d, 0)), int64(time.Second)) }

// The fields of draft-ietf-httpapi-ratelimit-headers-11 as net/http spells them, each a List of Items with Parameters
// (RFC 9651). Only this file writes them, as another draft may rename the parameters.
const (
	headerPolicy    = "Ratelimit-Policy"
	headerRateLimit = "Ratelimit"
)

const (
	// maxInteger is the largest Integer, of 15 digits (RFC 9651, section 3.3.1).
	maxInteger = 999_999_999_999_999
	// maxName is how many bytes a name has in the fields.
	maxName = 64
)

// appendPolicy appends an Item of RateLimit-Policy: q tokens in w seconds, or q of a unit at once.
func appendPolicy(dst []byte, name string, p *draftPolicy) []byte {
	dst = appendParameter(appendName(dst, name), ";q=", p.q)
	if p.unit != "" {
		return append(append(append(dst, `;qu="`...), p.unit...), '"')
	}
	return appendParameter(dst, ";w=", p.w)
}

// appendRateLimit appends an Item of RateLimit: r tokens are left, and more in t seconds. A t of 0 is left out.
func appendRateLimit(dst []byte, name string, r, t int64) []byte {
	dst = appendParameter(appendName(dst, name), ";r=", r)
	if t > 0 {
		dst = appendParameter(dst, ";t=", t)
	}
	return dst
}

func appendName(dst []byte, name string) []byte {
	if len(dst) > 0 {
		dst = append(dst, ", "...)
	}
	return append(append(append(dst, '"'), name...), '"')
}

func appendParameter(dst []byte, key string, n int64) []byte {
	return strconv.AppendInt(append(dst, key...), min(n, maxInteger), 10)
}

// fieldName returns a name that is valid as a String and as a Token (RFC 9651, sections 3.3.3 and 3.3.4). A hyphen
// replaces each invalid byte.
func fieldName(name string) string {
	if name == "" || !isAlpha(name[0]) && name[0] != '*' {
		name = "limit-" + name
	}
	text := []byte(name[:min(len(name), maxName)])
	for i, b := range text {
		if !isTokenByte(b) && b != ':' && b != '/' {
			text[i] = '-'
		}
	}
	return string(text)
}

// draftPolicy is a limit as clients see it in RateLimit-Policy.
type draftPolicy struct {
	name    string // unique in the Policy
	q, w    int64
	unit    string // of q, without w; "" is requests
	detail  string // why no wait helps; "" if one does
	problem []byte // the body of a refusal by this limit alone
}

// limitStatus is the status of a limit after a decision, as clients see it in RateLimit.
type limitStatus struct {
	policy    *draftPolicy
	remaining int64         // tokens
	held      int64         // tokens in a full bucket
	more      time.Duration // until there is another token
	refuses   bool
}

// limitStatuses is the status of each limit of a decision.
type limitStatuses struct {
	limits []limitStatus
	all    bool // keep all limits, not only those that refuse
	space  [1]limitStatus
}

func (s *limitStatuses) init(all bool) { s.limits, s.all = s.space[:0], all }

// add adds the status of a bucket of a set, unless it is not wanted. A client that is banned for some time has nothing left.
func (s *limitStatuses) add(set *limitSet, i int, found, after bucket.State, n int64, banned time.Duration) {
	b := &set.buckets[i]
	if b.Kind == bucket.Slots {
		banned = 0 // they are free or not
	}
	refuses := banned > 0 || b.Fit(found.Level, 1, n) == 0
	if s.all || refuses {
		left, more := b.Remaining(after.Level), millis(b.MoreAfter(after))
		if banned > 0 {
			left, more = 0, max(more, banned)
		}
		s.limits = append(s.limits, limitStatus{set.policies[i], left, min(b.Burst, b.Capacity), more, refuses})
	}
}

// addProhibited adds the status of a set's limit of 0.
func (s *limitStatuses) addProhibited(set *limitSet) {
	s.limits = append(s.limits, limitStatus{policy: set.policies[len(set.buckets)], refuses: true})
}

// giveBack adds n refunded tokens, or a slot, to each of the first limits.
func (s *limitStatuses) giveBack(first int, n int64) {
	for i := range s.limits[:first] {
		one := &s.limits[i]
		back := n
		if one.policy.unit == slotsUnit {
			back = 1
		}
		one.remaining = min(one.remaining+back, one.held)
	}
}

// list names the limits of a set for the fields: by the given name, followed by the limit's period if there are several
// limits, or by the limit's own text if the given name is "". No limit gets a name that is taken.
func (s *limitSet) list(name string, several bool, taken []string) {
	if name != "" {
		name = fieldName(name)
	}
	add := func(l Limit, q, w int64, detail string) {
		own := name
		switch {
		case own == "":
			own = fieldName(l.String())
		case several:
			own += "-" + fieldName(l.per())
		}
		own = freeName(own, taken)
		taken = append(taken, own)
		s.policies = append(s.policies, &draftPolicy{name: own, q: q, w: w, detail: detail, problem: newProblem(detail, own)})
	}
	for i := range s.buckets {
		full := s.buckets[i]
		full.Leave(-s.floor)
		add(s.limits[i], int64(s.limits[i].burst()), seconds(millis(full.FillTime())), "")
	}
	if s.denies {
		add(s.prohibited, 0, s.prohibitedWindow(), prohibitedDetail)
	}
}

// prohibitedWindow returns the seconds of the period of the limit that always denies, of a calendar's period that of the set.
func (s *limitSet) prohibitedWindow() int64 {
	return seconds(s.prohibited.length(time.UnixMilli(s.begins)))
}

// policyNames returns the names of a set's limits in the fields.
func (s *limitSet) policyNames() []string {
	var names []string
	for _, p := range s.listed() {
		names = append(names, p.name)
	}
	return names
}

// listed returns the policies of a set as RateLimit-Policy lists them.
func (s *limitSet) listed() []*draftPolicy {
	if s.guards == nil || s.guards.policy == nil {
		return s.policies
	}
	return append(slices.Clip(s.policies), s.guards.policy)
}

// freeName returns the name, followed by a number from 2 if the name is taken.
func freeName(name string, taken []string) string {
	own := name
	for i := 2; slices.Contains(taken, own); i++ {
		own = name + "-" + strconv.Itoa(i)
	}
	return own
}
