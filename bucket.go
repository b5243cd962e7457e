// Limits as sets of buckets: checked, as a policy counts them, and kept; and the results that they have.

package ginlimit

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
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
	local      bool    // counted in this process alone
}

// newLimitSet checks limits and reports every fault in them.
func newLimitSet(limits []Limit) (*limitSet, error) {
	s := &limitSet{given: slices.Clone(limits)} // the application may change its own
	if len(limits) == 0 {
		return s, fmt.Errorf("%w: no limit given", ErrInvalidArgument)
	}
	var errs []error
	for i, l := range limits {
		add := func(err error) { errs = append(errs, &limitError{err, i}) }
		if err := l.validate(); err != nil {
			add(err)
			continue
		}
		switch {
		case l.InFlight > 0:
			if s.slots > 0 {
				add(fmt.Errorf("%w: %s and %s limit the same", ErrInvalidArgument, InFlight(s.slots), l))
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
			add(err)
			continue
		}
		if (l.Calendar != Calendar{}) {
			s.rules.AddCalendar(l.Calendar.rule, int64(l.Rate))
		} else {
			s.rules.Add(b)
		}
		s.limits = append(s.limits, l)
		s.findTwins(limits[:i], l, func(twin Limit) {
			add(fmt.Errorf("%w: %s and %s have the same period", ErrInvalidArgument, twin, l))
		})
	}
	return s, errors.Join(errs...)
}

// findTwins finds earlier limits that have the bucket of the last limit.
func (s *limitSet) findTwins(before []Limit, last Limit, twin func(Limit)) {
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
}

// policyLimits are limits with what a policy adds to them: its floor, ban, slots, shares and leases. They do
// not change.
type policyLimits struct {
	*limitSet
	fields []httpfields.Limit // of the limits that are counted, then of the one that prohibits or the slots
	renews bool               // in a calendar period, another set counts
}

// newLimits returns limits as a policy counts them, and every error in them. A client's own limits have the
// policy's slots unless they name others; With gives no more slots. In this process alone nothing is leased.
func (c *countConfig) newLimits(name string, limits []Limit, slots int, local bool) (*policyLimits, error) {
	s, err := newLimitSet(limits)
	s.name, s.local = name, local
	if i := s.rules.Leave(int64(c.floor)); i >= 0 { // the first limit that holds no more prohibits
		s.prohibit(i)
	}
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
	return &policyLimits{s, fieldsOf(s), s.rules.Ends() != 0}, err
}

// checkLeft reports that a floor leaves nothing of limits.
func (c *countConfig) checkLeft(of *policyLimits) error {
	if !of.rules.Prohibits() || of.prohibited.Rate == 0 {
		return nil
	}
	text := "WithFloor(%d) leaves nothing of %s"
	if c.lease > 0 {
		text += "; WithLease keeps some of its burst: make either smaller"
	}
	return invalid(text, c.floor, of.prohibited)
}

// fieldsOf returns limits as header fields name them: by the policy's name, followed by their period if there
// are several.
func fieldsOf(s *limitSet) []httpfields.Limit {
	var fields []httpfields.Limit
	for _, l := range s.limits {
		fields = append(fields, httpfields.Limit{
			Name: l.per(), Quota: int64(l.burst()), Tokens: strconv.Itoa(l.burst()),
		})
	}
	switch {
	case s.rules.Prohibits():
		fields = append(fields, httpfields.Limit{
			Name: s.prohibited.per(), Detail: httpfields.ProhibitedDetail, Tokens: strconv.Itoa(s.prohibited.burst()),
		})
	case s.slots > 0:
		fields = append(fields, httpfields.Limit{
			Name: slotsName, Quota: int64(s.slots), Unit: httpfields.ConcurrentRequests, Tokens: strconv.Itoa(s.slots),
		})
	}
	inFlight := slices.ContainsFunc(s.given, Limit.isSlots)
	several := len(s.given) > 2 || len(s.given) == 2 && !inFlight
	httpfields.NameLimits(s.name, several, fields)
	return fields
}

// fieldOf returns the index in the header fields of a resource: the last if it prohibits, or is the slots.
func (l *policyLimits) fieldOf(resource int) int {
	return int(min(uint(resource), uint(len(l.limits))))
}

// result returns the Result of an answer under the set.
func (s *limitSet) result(a *engine.Answer) Result {
	r := Result{
		Allowed: a.Allowed, Granted: int(a.Granted), Limit: s.unlimited, Name: s.name,
		Remaining: int(min(a.Remaining, math.MaxInt)), RetryAfter: a.RetryAfter, ResetAfter: a.ResetAfter,
		Source: sources[a.Source],
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
	if s.local && r.Source == FromRedis {
		r.Source = FromLocal
	}
	if !r.Allowed {
		r.Cause = causeOf(&s.rules, a)
	}
	return r
}

// rows returns the status of each limit, in the order given; slots that a client's own limits do not
// name come last.
func (s *limitSet) rows(a *engine.Answer) []Result {
	source, given := s.result(a).Source, s.given
	if s.slots > 0 && !slices.ContainsFunc(given, Limit.isSlots) {
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
			row = Result{Limit: l, Name: s.name, RetryAfter: Never, Source: FromPolicy, Cause: CauseNever}
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
			if !row.Allowed {
				row.RetryAfter = status.Retry
			}
			switch {
			case row.Allowed:
			case row.RetryAfter == Never:
				row.Cause = CauseNever
			case a.QueueFull && resource == a.Resource:
				row.Cause = CauseQueueFull
			case l.InFlight > 0:
				row.Cause = CauseInFlight
			case a.Banned:
				row.Cause = CauseBan
			case status.Shared:
				row.Cause = CauseShare
			default:
				row.Cause = CauseRate
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

// checkBlockable reports why the limits cannot be blocked for d: none can, or for each for which it is too long.
func (s *limitSet) checkBlockable(d time.Duration) error {
	switch {
	case d <= 0:
		return fmt.Errorf("%w: a block of %s; want more than zero", ErrInvalidArgument, d)
	case s.rules.Divided:
		return fmt.Errorf("%w: a policy WithShares has no blocks: put another beside it, and block that one",
			ErrInvalidArgument)
	case len(s.limits) == 0 && !s.rules.Prohibits() && s.slots > 0:
		return fmt.Errorf("%w: a block denies tokens, and there are only requests in flight; give the policy a rate too",
			ErrInvalidArgument)
	case len(s.limits) == 0 && !s.rules.Prohibits():
		return fmt.Errorf("%w: %s is never counted, so it has no bucket to block", ErrInvalidArgument, s.unlimited)
	}
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

// prohibit follows the rules, which deny everything because of a limit.
func (s *limitSet) prohibit(limit int) { s.prohibited, s.limits = s.limits[limit], nil }

const (
	// maxClientLimits is how many sets of limits from its function a policy keeps checked. A further set
	// replaces any of them: a set that is used often is soon there again.
	maxClientLimits = 2048
	// maxCachedLimits is the most limits of a set that is kept.
	maxCachedLimits = 16
)

// clientLimits are the limits of a client, as a key of a map.
type clientLimits struct {
	n      int // of limits
	limits [4]Limit
	more   any // clientLimits of those that follow; nil if there are none
}

func newClientLimits(limits []Limit) (c clientLimits) {
	c.n = copy(c.limits[:], limits)
	if c.n < len(limits) {
		c.more = newClientLimits(limits[c.n:])
	}
	return c
}

// limitCache keeps limits of clients that were checked. The zero limitCache is empty.
type limitCache struct {
	mu   sync.RWMutex // guards sets
	sets map[clientLimits]*policyLimits
}

// get returns the set of a client's limits, or nil.
func (c *limitCache) get(limits []Limit) *policyLimits {
	if len(limits) > maxCachedLimits {
		return nil
	}
	key := newClientLimits(limits)
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.sets[key]
}

// keep keeps the set of a client's limits.
func (c *limitCache) keep(limits []Limit, s *policyLimits) {
	if len(limits) > maxCachedLimits {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sets) >= maxClientLimits {
		for some := range c.sets { // a map begins with any of its keys
			delete(c.sets, some)
			break
		}
	}
	if c.sets == nil {
		c.sets = map[clientLimits]*policyLimits{}
	}
	c.sets[newClientLimits(limits)] = s
}

// unusable is the error of limits that the application returned for a client. The log may name them.
type unusable struct {
	error
	limits []Limit
}

func (u *unusable) Unwrap() error { return u.error }

// text returns the limits, or the first of many.
func (u *unusable) text() string { return fmt.Sprintf("%.200s", joinLimits(u.limits)) }
