package ginlimit

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/httpfields"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// slotsName is the name of a policy's slots, after the policy's and a hyphen.
const slotsName = "c"

// limitSet is checked limits: as rules, and as results name them. Once a policy has completed it, it does not
// change.
type limitSet struct {
	name       string  // of the policy
	given      []Limit // in the order given
	rules      rules.Set
	limits     []Limit // that are counted
	unlimited  Limit   // one that is never counted, if there is one
	prohibited Limit   // one that denies everything, if there is one
	slots      int     // requests in flight; 0 is any number
}

// newLimitSet checks limits and reports every fault in them.
func newLimitSet(limits []Limit) (*limitSet, error) {
	s := &limitSet{given: slices.Clone(limits)} // the application may change its own
	if len(limits) == 0 {
		return s, fmt.Errorf("%w: no limit given", ErrInvalidArgument)
	}
	var errs []error
	for i, l := range limits {
		if err := l.validate(); err != nil {
			errs = append(errs, err)
			continue
		}
		switch {
		case l.InFlight > 0:
			if s.slots > 0 {
				errs = append(errs, fmt.Errorf("%w: %s and %s limit the same",
					ErrInvalidArgument, InFlight(s.slots), l))
			}
			s.slots = l.InFlight
			continue
		case l.Rate < 0:
			s.unlimited = l
			continue
		case l.Rate == 0:
			s.prohibited = l
			s.rules.Prohibit(l.Calendar.rule)
			continue
		}
		b, err := l.bucket()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if (l.Calendar != Calendar{}) {
			s.rules.AddCalendar(l.Calendar.rule, int64(l.Rate))
		} else {
			s.rules.Add(b)
		}
		s.limits = append(s.limits, l)
		if err := s.findTwin(limits[:i], l); err != nil {
			errs = append(errs, err)
		}
	}
	return s, errors.Join(errs...)
}

// findTwin reports earlier limits that have the bucket of the last limit.
func (s *limitSet) findTwin(before []Limit, last Limit) error {
	var errs []error
	twin := func(other Limit) {
		errs = append(errs, fmt.Errorf("%w: %s and %s have the same period", ErrInvalidArgument, other, last))
	}
	for _, other := range before {
		if other.Period == last.Period && other.Calendar == last.Calendar &&
			other.Algorithm == last.Algorithm && other.Rate > 0 {
			twin(other)
			break
		}
	}
	buckets := s.rules.Buckets(rules.Limits)
	for i := range buckets[:len(buckets)-1] { // of zones that are not told apart
		if buckets[i].ID == buckets[len(buckets)-1].ID && s.limits[i].Calendar != last.Calendar {
			twin(s.limits[i])
		}
	}
	return errors.Join(errs...)
}

// checkBlock reports the limits that cannot be blocked for d, as it is too long.
func (s *limitSet) checkBlock(d time.Duration) error {
	var errs []error
	set := s.rules.Now()
	for i, l := range s.limits {
		if longest := set.MaxBlock(i); wholeMillis(d) > longest {
			errs = append(errs, fmt.Errorf("%w: a block of %s is too long under %s: at most %s",
				ErrInvalidArgument, d, l, millis(longest)))
		}
	}
	return errors.Join(errs...)
}

// result returns the Result of an answer under the set.
func (s *limitSet) result(e *engine.Engine, a *engine.Answer) Result {
	r := Result{
		Allowed: a.Allowed, Granted: int(a.Granted), Limit: s.unlimited, Name: s.name,
		Remaining: int(min(a.Remaining, math.MaxInt)), RetryAfter: a.RetryAfter, ResetAfter: a.ResetAfter,
		Source: sourceOf(e, a.Source), Cause: causeOf(&s.rules, a),
	}
	switch {
	case a.Resource == rules.Prohibited:
		r.Limit = s.prohibited
	case a.Resource >= len(s.limits):
		r.Limit, r.Name = Limit{InFlight: s.slots}, s.name+"-"+slotsName
	case a.Resource >= 0:
		r.Limit = s.limits[a.Resource]
	case s.unlimited == Limit{}: // only requests in flight or a ban are counted
		r.Limit = Unlimited()
	}
	return r
}

// rows returns the status of each limit, in the order given; slots that a client's own limits do not
// name come last.
func (s *limitSet) rows(e *engine.Engine, a *engine.Answer) []Result {
	source, given := sourceOf(e, a.Source), s.given
	if s.slots > 0 && !slices.ContainsFunc(given, func(l Limit) bool { return l.InFlight > 0 }) {
		given = append(slices.Clone(given), InFlight(s.slots))
	}
	rows := make([]Result, 0, len(given))
	counted := 0
	for _, l := range given {
		resource, row := -1, Result{Allowed: true, Limit: l, Name: s.name, Remaining: l.burst(), Source: FromPolicy}
		switch {
		case l.InFlight > 0:
			resource, row.Limit, row.Name = s.rules.Slots(), InFlight(s.slots), s.name+"-"+slotsName
		case l.Rate == 0, l == s.prohibited:
			row = Result{Limit: l, Name: s.name, RetryAfter: rules.Never, Source: FromPolicy, Cause: CauseNever}
		case l.Rate < 0:
			resource, row.Remaining = s.rules.Ban(), math.MaxInt
		case counted < len(s.limits):
			resource, counted = counted, counted+1
		}
		status := a.Status(resource)
		if status == nil && resource >= 0 && l.Rate >= 0 && !a.Allowed && a.Source == engine.FromStatic {
			row.Remaining = 0 // a line denies, and nobody has looked at this limit
		}
		if status != nil {
			row.Remaining, row.ResetAfter = int(min(status.Remaining, math.MaxInt)), status.Reset
			row.Source, row.Allowed = source, !status.Denies
			switch {
			case row.Allowed:
			case a.QueueFull && resource == a.Resource:
				row.RetryAfter, row.Cause = status.Retry, CauseQueueFull
			case l.InFlight > 0:
				row.RetryAfter, row.Cause = status.Retry, CauseInFlight
			case a.Banned:
				row.RetryAfter, row.Cause = status.Retry, CauseBan
			case status.Shared:
				row.RetryAfter, row.Cause = status.Retry, CauseShare
			default:
				row.RetryAfter, row.Cause = status.Retry, CauseRate
			}
		}
		if ban := a.Status(s.rules.Ban()); l.InFlight > 0 && ban != nil && ban.Denies {
			row.Allowed, row.RetryAfter, row.Cause = false, max(row.RetryAfter, ban.Retry), CauseBan
		}
		rows = append(rows, row)
	}
	return rows
}

// window returns how long a counted limit takes to regain all its tokens, or the one that prohibits, in the
// calendar periods of a set.
func (s *limitSet) window(limit int, set *rules.Set) time.Duration {
	if limit < len(s.limits) {
		return set.Window(limit)
	}
	if window := set.ProhibitedWindow(); window > 0 {
		return window
	}
	return s.prohibited.Period
}

// checkBlockable reports why the limits cannot be blocked for d.
func (s *limitSet) checkBlockable(d time.Duration) error {
	switch {
	case d <= 0:
		return fmt.Errorf("%w: a block of %s; want more than zero", ErrInvalidArgument, d)
	case s.rules.Divided():
		return fmt.Errorf("%w: a policy WithShares has no blocks; block one beside it in AllOf", ErrInvalidArgument)
	case len(s.limits) == 0 && !s.rules.Prohibits() && s.slots > 0:
		return fmt.Errorf("%w: a block denies tokens, and there are only requests in flight; give the policy a rate too",
			ErrInvalidArgument)
	case len(s.limits) == 0 && !s.rules.Prohibits():
		return fmt.Errorf("%w: %s is never counted, so it has no bucket to block", ErrInvalidArgument, s.unlimited)
	}
	return s.checkBlock(d)
}

// leave reserves tokens of each limit for others. The first limit that holds no more prohibits.
func (s *limitSet) leave(floor int) {
	if i := s.rules.Leave(int64(floor)); i >= 0 {
		s.prohibit(i)
	}
}

// prohibit follows the rules, which deny everything because of a limit.
func (s *limitSet) prohibit(limit int) { s.prohibited, s.limits = s.limits[limit], nil }

// sourceOf returns a Source by its name in this package.
func sourceOf(e *engine.Engine, source engine.Source) Source {
	if source == engine.FromStore && e.IsLocal() {
		return FromLocal
	}
	return [...]Source{
		engine.FromStore: FromRedis, engine.FromCache: FromCache, engine.FromLease: FromLease,
		engine.FromLocal: FromLocal, engine.FromOpen: FromOpen, engine.FromStatic: FromPolicy,
	}[source]
}

// causeOf returns why an answer denies.
func causeOf(set *rules.Set, a *engine.Answer) Cause {
	switch {
	case a.Allowed:
		return 0
	case a.RetryAfter < 0:
		return CauseNever
	case a.Banned:
		return CauseBan
	case a.QueueFull:
		return CauseQueueFull
	case a.Resource >= 0 && a.Resource == set.Slots():
		return CauseInFlight
	case a.Shared:
		return CauseShare
	}
	return CauseRate
}

// policyLimits are limits with what a policy adds to them: its floor, ban, slots, shares and leases. They do
// not change.
type policyLimits struct {
	*limitSet
	fields []httpfields.Limit // of the limits that are counted, then of the one that prohibits or the slots
}

// newLimits returns limits as a policy counts them, and every error in them. A client's own limits have the
// policy's slots unless they name others; With gives no more slots. In this process alone nothing is leased.
func (c *countConfig) newLimits(name string, limits []Limit, slots int, local bool) (*policyLimits, error) {
	s, err := newLimitSet(limits)
	s.name = name
	s.leave(c.floor)
	if s.slots == 0 || c.fewerSlots && slots > 0 && s.slots > slots {
		s.slots = slots
	}
	if c.shares != nil {
		s.rules.Divide()
	}
	var inFlight *bucket.Bucket
	if s.slots > 0 {
		b := bucket.NewSlots(int64(s.slots))
		inFlight = &b
	}
	s.rules.Guard(c.ban, inFlight)
	if !local {
		if i := s.rules.AllowLeases(c.lease); i >= 0 {
			s.prohibit(i)
		}
	}
	s.rules.KeepShare()
	return &policyLimits{s, fieldsOf(s)}, err
}

// fieldsOf returns limits as header fields name them: by the policy's name, followed by their period if there
// are several.
func fieldsOf(s *limitSet) []httpfields.Limit {
	var fields []httpfields.Limit
	for _, l := range s.limits {
		fields = append(fields, httpfields.Limit{Name: l.per(), Quota: int64(l.burst())})
	}
	switch {
	case s.rules.Prohibits():
		fields = append(fields, httpfields.Limit{Name: s.prohibited.per(), Detail: httpfields.ProhibitedDetail})
	case s.slots > 0:
		fields = append(fields, httpfields.Limit{
			Name: slotsName, Quota: int64(s.slots), Unit: httpfields.ConcurrentRequests,
		})
	}
	inFlight := slices.ContainsFunc(s.given, func(l Limit) bool { return l.InFlight > 0 })
	several := len(s.given) > 2 || len(s.given) == 2 && !inFlight
	httpfields.NameLimits(s.name, several, fields)
	return fields
}

// fieldOf returns the index in the header fields of a resource.
func (l *policyLimits) fieldOf(resource int) int {
	if resource >= 0 && resource < len(l.limits) {
		return resource
	}
	return len(l.limits) // it prohibits, or is the slots
}

// millis returns ms milliseconds, at most the longest Duration there is.
func millis(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// wholeMillis returns a duration in whole milliseconds, rounded up.
func wholeMillis(d time.Duration) int64 { return bucket.CeilDiv(int64(d), int64(time.Millisecond)) }

// unusable is the error of limits that the application returned for a client. The log may name them.
type unusable struct {
	error
	limits []Limit
}

func (u *unusable) Unwrap() error { return u.error }

// text returns the limits, or the first of many.
func (u *unusable) text() string { return fmt.Sprintf("%.200s", joinLimits(u.limits)) }

// fieldsOf returns the limits of a part as header fields and bodies name them. A name that a limit of an earlier policy
// has gets a number.
func (s *requestState) fieldsOf(t *part) []httpfields.Limit {
	for state := s; state != nil; state = state.before.Load() {
		for i := range state.parts {
			if other := &state.parts[i]; other != t && t.policy.mayShareNames(other.policy) {
				return s.renamed(t)
			}
		}
	}
	return t.limits.fields
}

// mayShareNames reports whether a limit of each of two policies can have one name. The name of a limit is its policy's,
// or begins with it and a hyphen.
func (p *Policy) mayShareNames(other *Policy) bool {
	short, long := p.field, other.field
	if len(short) > len(long) {
		short, long = long, short
	}
	return strings.HasPrefix(long, short) && (len(long) == len(short) || long[len(short)] == '-')
}

// renamed is fieldsOf if other policies may have the names of its policy. What a policy has without an override, or
// when it is not skipped, keeps its names: so a later policy has the same names in each response.
func (s *requestState) renamed(t *part) []httpfields.Limit {
	var taken []string
	take := func(fields []httpfields.Limit) {
		for i := range fields {
			taken = append(taken, fields[i].Name)
		}
	}
	for _, other := range s.chain(func(other *part) bool { return !other.policy.dryRun }) {
		usual := other.policy.limits.fields
		if other.limits == nil || other.limits == other.policy.limits {
			usual = httpfields.Rename(usual, taken)
			if other == t {
				return usual
			}
			take(usual)
			continue
		}
		fields := httpfields.Rename(other.limits.fields, taken)
		if other == t {
			return fields
		}
		usual = httpfields.Rename(usual, taken)
		take(fields)
		take(usual)
	}
	return t.limits.fields // of a dry run, which has none in a response
}
