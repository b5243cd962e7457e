package rules

import (
	"math"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// Never is the RetryAfter of what no waiting makes allowed: the longest wait.
const Never time.Duration = bucket.Never

// Longest is the longest wait that is not Never, 292 years.
const Longest = Never / time.Millisecond * time.Millisecond

// What a verdict is about, if it is about no resource.
const (
	Uncounted  = -1 // nothing is counted, or nothing but a ban
	Prohibited = -2 // the limit that prohibits
)

// Verdict is the answer to a request for tokens, by the resource that is closest to exhaustion.
type Verdict struct {
	Allowed     bool
	Banned      bool  // it is denied, and the client is banned
	Shared      bool  // it is denied as its tenant has its share of the resource, which others have too
	BusyCost    int64 // if it is denied: a charge's tokens × the weights of all busy tenants; 0 if no other is busy
	Granted     int64 // tokens
	Resource    int   // its index in the set, Uncounted or Prohibited
	Remaining   int64 // whole tokens; math.MaxInt64 if they are not counted
	RetryAfter  time.Duration
	ResetAfter  time.Duration
	TokensAfter time.Duration // if it is denied for want of a slot: until there are tokens too; 0 if there are
}

// CloserThan reports whether a verdict is closer to exhaustion than another: of two denials the one
// that lasts longer, else the one with fewer tokens left, else the one that is full later.
func (v *Verdict) CloserThan(other *Verdict) bool {
	if v.RetryAfter != other.RetryAfter {
		return v.RetryAfter > other.RetryAfter
	}
	if v.Remaining != other.Remaining {
		return v.Remaining < other.Remaining
	}
	return v.ResetAfter > other.ResetAfter
}

// Report is which statuses are wanted beside a verdict.
type Report uint8

const (
	ReportNone    Report = iota
	ReportDenying        // of the resources that deny
	ReportEvery
	ReportFull // every one, and until when it is full; of a client that is banned the ban too
)

// Status is the status of a resource after a decision.
type Status struct {
	Remaining int64         // whole tokens
	Full      int64         // tokens in a full bucket
	More      time.Duration // until there is another token
	Retry     time.Duration // until the request fits it, if that is wanted and it denies
	Reset     time.Duration // until it is full, if that is wanted
	Resource  int32         // its index in the set, or Prohibited
	Denies    bool
	Shared    bool // it denies as the tenant has its share
}

// Static returns the verdict on n tokens that needs no bucket, if there is one.
func (s *Set) Static(scope Scope, n int64) (Verdict, bool) {
	switch {
	case s.prohibits:
		return Verdict{Resource: Prohibited, RetryAfter: Never}, true
	case !s.Counts(scope):
		return Verdict{Allowed: true, Granted: n, Resource: Uncounted, Remaining: math.MaxInt64}, true
	}
	return Verdict{}, false
}

// Fit returns how many of some charges of n tokens each fit the states found, and whether one does. As in all that
// follows, the states are those of the first resources of the set.
func (s *Set) Fit(found []bucket.State, charges, n int64) (fit int64, allowed bool) {
	fit = max(1, charges)
	for i := range found {
		fit = s.resources[i].Fits(found[i], fit, n)
	}
	return min(fit, charges), fit > 0
}

// Judge returns the verdict on charges of n tokens each, from the states that the store found, by the arithmetic by
// which the store decided, and appends the statuses that are wanted. It is allowed if a charge fits; how many are made
// depends on what else is decided with it.
func (s *Set) Judge(found []bucket.State, n, charges int64, allowed bool, report Report, statuses []Status) (
	Verdict, []Status) {
	closest := Verdict{Allowed: allowed, Granted: charges * n, Resource: Uncounted, Remaining: math.MaxInt64}
	var banned, tokens time.Duration
	if !allowed {
		if s.bans > 0 {
			banned = s.Banned(found)
			closest.Banned = banned > 0
		}
		closest.Remaining, closest.RetryAfter, closest.ResetAfter = 0, banned, banned
	}
	for i := range found {
		b := &s.resources[i]
		if b.Kind == bucket.Ban || b.Kind == bucket.Tenants { // these are judged with their limit
			if b.Kind == bucket.Ban && banned > 0 && report == ReportFull {
				statuses = append(statuses, Status{More: banned, Retry: banned, Reset: banned, Resource: int32(i), Denies: true})
			}
			continue
		}
		var status Status
		s.setStatus(&status, i, &found[i], n, charges, allowed)
		this := Verdict{Allowed: allowed, Granted: charges * n, Resource: i, Banned: banned > 0}
		if s.Divided {
			this.BusyCost = s.shareOf(&status, found[1], n, charges, allowed)
		}
		this.Remaining, this.RetryAfter, this.ResetAfter = status.Remaining, status.Retry, status.Reset
		this.Shared = status.Shared
		if banned > 0 {
			this.Remaining = 0
			this.RetryAfter, this.ResetAfter = max(this.RetryAfter, banned), max(this.ResetAfter, banned)
		}
		// A slot is free again when a request ends: slots are closest if there is none, or nothing else.
		if b.Kind != bucket.Slots {
			tokens = max(tokens, this.RetryAfter)
			if banned > 0 {
				status.ban(banned)
			}
		}
		if closest.Resource < 0 || this.CloserThan(&closest) && (b.Kind != bucket.Slots || this.RetryAfter > 0) {
			closest = this
		}
		if report > ReportDenying || report == ReportDenying && status.Denies {
			if report != ReportFull {
				status.Retry, status.Reset = 0, 0
			}
			statuses = append(statuses, status)
		}
	}
	if closest.Resource >= 0 && s.resources[closest.Resource].Kind == bucket.Slots {
		closest.TokensAfter = tokens
	}
	return closest, statuses
}

// setStatus sets the status of a resource by its own state, after charges.
func (s *Set) setStatus(status *Status, i int, found *bucket.State, n, charges int64, allowed bool) {
	b, after := &s.resources[i], *found
	if charges > 0 {
		after = b.Charged(after, charges, n)
	}
	left := b.Status(after, n)
	status.Resource, status.Remaining, status.Full = int32(i), left.Remaining, min(b.Burst, b.Capacity)
	status.More, status.Reset = duration(left.More), duration(left.Reset)
	if !allowed {
		// More than the share of a calendar quota, but not more than the quota, may fit when the period ends.
		if left.Retry == bucket.Never && s.whole != nil && b.Ends != 0 && n <= s.whole.resources[i].Burst {
			left.Retry = b.Left(time.Now().UnixMilli())
		}
		status.Retry, status.Denies = duration(left.Retry), left.Retry > 0
	}
}

// shareOf restricts the status of the limit to a tenant's share of it. It returns the Verdict's BusyCost.
func (s *Set) shareOf(status *Status, found bucket.State, n, charges int64, allowed bool) (busyCost int64) {
	b, of, after := &s.resources[1], found.Shares, found
	if of == nil {
		return 0
	}
	if charges > 0 {
		after = b.Charged(found, charges, n)
	}
	status.Remaining = min(status.Remaining, b.RemainingOf(after))
	status.More = max(status.More, duration(b.MoreOf(after)))
	if b.Fits(found, 1, n) == 0 {
		retry := duration(max(1, found.Wait))
		if status.Reset = max(status.Reset, retry); !allowed {
			status.Denies, status.Shared = true, retry >= status.Retry
			status.More, status.Retry = max(status.More, retry), max(status.Retry, retry)
		}
	}
	if others := of.Weights - of.Held; others > 0 && status.Retry > 0 && status.Retry != Never {
		busyCost = int64(min(bucket.MaxUnits, float64(n)*float64(others+of.Weight)))
	}
	return busyCost
}

// ban restricts the status of a limit to a client that is banned for a time. It has nothing left.
func (s *Status) ban(d time.Duration) {
	if s.Remaining > 0 { // it is there when the ban ends
		s.More = 0
	}
	s.Remaining, s.Denies = 0, true
	s.More, s.Retry, s.Reset = max(s.More, d), max(s.Retry, d), max(s.Reset, d)
}

// JudgeLeased returns the verdict on n tokens that were taken ahead, of which some are left. These
// are all that this process can vouch for.
func (s *Set) JudgeLeased(states []bucket.State, n, left int64, report Report, statuses []Status) (Verdict, []Status) {
	var closest Verdict
	for i := range s.resources[:s.limits] {
		var status Status
		s.setStatus(&status, i, &states[i], 1, 0, true)
		this := Verdict{Allowed: true, Granted: n, Resource: i, Remaining: left, ResetAfter: status.Reset}
		if i == 0 || this.CloserThan(&closest) {
			closest = this
		}
		if status.Remaining = left; report != ReportFull {
			status.Reset = 0
		}
		if report >= ReportEvery {
			statuses = append(statuses, status)
		}
	}
	return closest, statuses
}

// ResetAfter returns until when a limit is full, by the states of all.
func (s *Set) ResetAfter(limit int, states []bucket.State) time.Duration {
	return duration(s.resources[limit].Status(states[limit], 1).Reset)
}

// Regain returns how long it takes until ahead more tokens are there: as a token bucket regains them, or
// a window for each time that it is used up, if others take some of its tokens before n are taken.
func (s *Set) Regain(ahead, others, n int64) (d time.Duration) {
	for i := range s.resources[:s.limits] {
		if b := &s.resources[i]; b.Flows() {
			d = max(d, duration(bucket.CeilDiv(min(ahead, bucket.MaxUnits/b.Cost)*b.Cost, b.Drain)))
		} else {
			d = max(d, duration(min((others+n-1)/max(1, b.Burst), bucket.MaxUnits/b.Period)*b.Period))
		}
	}
	return d
}

// Banned returns for how long the client is banned, by the states found.
func (s *Set) Banned(found []bucket.State) time.Duration {
	if s.bans == 0 || len(found) == s.limits {
		return 0
	}
	ban := &found[s.limits]
	return duration(max(ban.Level, ban.Wait))
}

// duration returns milliseconds as a Duration: Never for [bucket.Never] alone, else at most Longest.
func duration(ms int64) time.Duration {
	if ms == bucket.Never {
		return Never
	}
	return time.Duration(min(ms, Longest.Milliseconds())) * time.Millisecond
}
