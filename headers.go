package ginlimit

import (
	"net/http"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/httpfields"
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

// setXRateLimit sets the X-RateLimit fields, unless the request is unlimited.
func setXRateLimit(f *httpfields.Fields, h http.Header, r Result) {
	if r.Limit.Rate >= 0 {
		f.SetXRateLimit(h, int64(r.Limit.burst()), int64(r.Remaining), httpfields.Seconds(r.ResetAfter))
	}
}

// limitStatus is the status of a limit after a decision.
type limitStatus struct {
	policy *httpfields.Limit
	httpfields.Status
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
		s.limits = append(s.limits, limitStatus{&set.policies[i], httpfields.Status{
			Remaining: left, Full: min(b.Burst, b.Capacity), More: httpfields.Seconds(more), Denies: refuses,
		}})
	}
}

// addProhibited adds the status of a set's limit of 0.
func (s *limitStatuses) addProhibited(set *limitSet) {
	s.limits = append(s.limits, limitStatus{&set.policies[len(set.buckets)], httpfields.Status{Denies: true}})
}

// giveBack adds n refunded tokens, or a slot, to each of the first limits.
func (s *limitStatuses) giveBack(first int, n int64) {
	for i := range s.limits[:first] {
		one := &s.limits[i]
		back := n
		if one.policy.Unit == httpfields.ConcurrentRequests {
			back = 1
		}
		one.GiveBack(back)
	}
}

// list names the limits of a set for the fields: by the given name, followed by the limit's period if there are several
// limits, or by the limit's own text if the given name is "". No limit gets a name that is taken.
func (s *limitSet) list(name string, several bool, taken []string) {
	if name != "" {
		name = httpfields.Name(name)
	}
	add := func(l Limit, q, w int64, detail string) {
		own := name
		switch {
		case own == "":
			own = httpfields.Name(l.String())
		case several:
			own += "-" + httpfields.Name(l.per())
		}
		own = httpfields.FreeName(own, taken)
		taken = append(taken, own)
		s.policies = append(s.policies, httpfields.Limit{
			Name: own, Quota: q, Window: w, Detail: detail, Problem: httpfields.QuotaProblem(detail, own),
		})
	}
	for i := range s.buckets {
		full := s.buckets[i]
		full.Leave(-s.floor)
		add(s.limits[i], int64(s.limits[i].burst()), httpfields.Seconds(millis(full.FillTime())), "")
	}
	if s.denies {
		add(s.prohibited, 0, s.prohibitedWindow(), httpfields.ProhibitedDetail)
	}
}

// prohibitedWindow returns the seconds of the period of the limit that always denies, of a calendar's period that of the set.
func (s *limitSet) prohibitedWindow() int64 {
	return httpfields.Seconds(s.prohibited.length(time.UnixMilli(s.begins)))
}

// policyNames returns the names of a set's limits in the fields.
func (s *limitSet) policyNames() []string {
	var names []string
	for _, p := range s.listed() {
		names = append(names, p.Name)
	}
	return names
}

// listed returns the policies of a set as RateLimit-Policy lists them.
func (s *limitSet) listed() []httpfields.Limit {
	if s.guards == nil || s.guards.policy == nil {
		return s.policies
	}
	return append(slices.Clip(s.policies), *s.guards.policy)
}
