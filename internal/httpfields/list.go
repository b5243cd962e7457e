package httpfields

import (
	"slices"
	"strconv"
	"time"
)

// The fields of draft-ietf-httpapi-ratelimit-headers-11, each a List of Items with Parameters (RFC
// 9651). Only this file writes them, as another draft may rename the parameters.
const (
	RateLimitPolicy = "Ratelimit-Policy"
	RateLimit       = "Ratelimit"
)

// ConcurrentRequests is the unit of a limit of requests in flight
// (draft-ietf-httpapi-ratelimit-headers-11, section 3.1.4).
const ConcurrentRequests = "concurrent-requests"

// maxInteger is the largest Integer, of 15 digits (RFC 9651, section 3.3.1).
const maxInteger = 999_999_999_999_999

// Limit is a limit as clients see it in RateLimit-Policy.
type Limit struct {
	Name    string // as [NameLimits] completes it
	Quota   int64  // tokens
	Unit    string // of the quota; "" is requests
	Detail  string // why no wait helps; "" if one does
	Tokens  string // in X-RateLimit-Limit
	Problem []byte // the body of a denial by this limit alone: [QuotaProblem] of its detail and name
}

// NameLimits names the limits of a policy and makes their bodies, once for all responses. A limit has the
// policy's name, followed by its own if there are several or if it has a unit, and by a number if another
// limit has that name.
func NameLimits(policy string, several bool, limits []Limit) {
	policy = Name(policy)
	for i := range limits {
		limit := &limits[i]
		name := policy
		if several || limit.Unit != "" {
			name += "-" + Name(limit.Name)
		}
		limit.Name = name
		taken := func(other Limit) bool { return other.Name == limit.Name }
		for n := 2; slices.ContainsFunc(limits[:i], taken); n++ {
			limit.Name = name + "-" + strconv.Itoa(n)
		}
		limit.Problem = QuotaProblem(limit.Detail, limit.Name)
	}
}

// Rename returns the limits with names that are not taken, by the rule of [NameLimits]. It does not change them.
func Rename(limits []Limit, taken []string) []Limit {
	renamed := limits
	for i := range limits {
		name := limits[i].Name
		isTaken := func(name string, own []Limit) bool {
			return slices.Contains(taken, name) ||
				slices.ContainsFunc(own, func(other Limit) bool { return other.Name == name })
		}
		if !isTaken(name, nil) {
			continue
		}
		if &renamed[0] == &limits[0] {
			renamed = slices.Clone(limits)
		}
		n := 2
		for isTaken(name+"-"+strconv.Itoa(n), renamed) {
			n++
		}
		renamed[i].Name = name + "-" + strconv.Itoa(n)
		renamed[i].Problem = QuotaProblem(limits[i].Detail, renamed[i].Name)
	}
	return renamed
}

// Status is the status of a limit after a decision, as clients see it in RateLimit.
type Status struct {
	Limit     int   // its index in the list
	Remaining int64 // tokens
	Full      int64 // tokens of a full bucket
	More      int64 // seconds until there is another token; not written if it is 0
	Denies    bool
}

// List is what a response says of the limits of one policy.
type List struct {
	Limits   []Limit  // never changed, so responses can share them
	Statuses []Status // in order; a limit may have none, and more than one
}

// AppendPolicy appends the Items of RateLimit-Policy, one for each limit: a quota in a window, or a
// quota of a unit at once. Windows are asked for each time, as months differ.
func (l *List) AppendPolicy(dst []byte, window func(limit int) time.Duration) []byte {
	for i := range l.Limits {
		limit := &l.Limits[i]
		dst = appendParameter(appendName(dst, limit.Name), ";q=", limit.Quota)
		if limit.Unit != "" {
			dst = append(append(append(dst, `;qu="`...), limit.Unit...), '"')
		} else {
			dst = appendParameter(dst, ";w=", Seconds(window(i)))
		}
	}
	return dst
}

// AppendRateLimit appends the Items of RateLimit, one for each status: r tokens are left, and there
// are more in t seconds.
//
// In a response that denies, only limits that deny have a t: the others' may be longer than
// Retry-After, and clients need not wait for it.
func (l *List) AppendRateLimit(dst []byte, denied bool) []byte {
	for i := range l.Statuses {
		status := &l.Statuses[i]
		dst = appendParameter(appendName(dst, l.Limits[status.Limit].Name), ";r=", status.Remaining)
		if status.More > 0 && (status.Denies || !denied) {
			dst = appendParameter(dst, ";t=", status.More)
		}
	}
	return dst
}

// SetDraft sets RateLimit-Policy and RateLimit to what lists have appended. A field without Items
// is not set.
func SetDraft(h map[string][]string, policies, limits []byte) {
	if len(policies) > 0 {
		h[RateLimitPolicy] = []string{string(policies)}
	}
	if len(limits) > 0 {
		h[RateLimit] = []string{string(limits)}
	}
}

// Problem returns the body of a denial, which names the limits that deny, each once. There may be
// none.
func (l *List) Problem(detail string) []byte {
	denying := make([]int, 0, 8) // on the stack
	for i := range l.Statuses {
		if status := &l.Statuses[i]; status.Denies && !slices.Contains(denying, status.Limit) {
			denying = append(denying, status.Limit)
		}
	}
	if len(denying) == 1 {
		if only := &l.Limits[denying[0]]; only.Detail == detail {
			return only.Problem
		}
	}
	names := make([]string, len(denying))
	for i, limit := range denying {
		names[i] = l.Limits[limit].Name
	}
	return QuotaProblem(detail, names...)
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
