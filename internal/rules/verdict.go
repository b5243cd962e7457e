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

// Fit returns how many of an operation's charges fit the states found, and whether one does.
func (s *Set) Fit(scope Scope, found []bucket.State, op bucket.Op) (charges int64, allowed bool) {
	buckets := s.Buckets(scope)
	charges = max(1, op.Charges)
	for i := range buckets {
		charges = buckets[i].Fits(found[i], charges, op.N)
	}
	return min(charges, op.Charges), charges > 0
}

// Judge returns the verdict on charges of n tokens each, from the states that the store found, by the arithmetic by
// which the store decided, and appends the statuses that are wanted. It is allowed if a charge fits; how many are made
// depends on what else is decided with it.
func (s *Set) Judge(scope Scope, found []bucket.State, n, charges int64, allowed bool, report Report,
	statuses []Status) (Verdict, []Status) {
	buckets := s.Buckets(scope)
	closest := Verdict{Allowed: allowed, Granted: charges * n, Resource: Uncounted, Remaining: math.MaxInt64}
	var banned, tokens time.Duration
	if !allowed {
		if banned = s.Banned(scope, found); banned > 0 {
			closest.Banned = true
			closest.Remaining, closest.RetryAfter, closest.ResetAfter = 0, banned, banned
		}
	}
	for i := range buckets {
		b := &buckets[i]
		if b.Kind == bucket.Ban && banned > 0 && report == ReportFull {
			statuses = append(statuses, Status{More: banned, Retry: banned, Reset: banned, Resource: int32(i), Denies: true})
		}
		if b.Kind == bucket.Ban || b.Kind == bucket.Tenants { // these are judged with their limit
			continue
		}
		after := found[i]
		if charges > 0 {
			after = b.Charged(after, charges, n)
		}
		this := Verdict{
			Allowed: allowed, Granted: charges * n, Resource: i,
			Remaining: b.Remaining(after.Level), ResetAfter: duration(b.ResetAfter(after)),
		}
		if !allowed {
			this.RetryAfter = s.retryAfter(i, b, after, n)
		}
		var share tenantShare
		if s.Divided {
			share = shareOf(&buckets[1], found[1], charges, n)
			share.restrict(&this, allowed)
		}
		if banned > 0 {
			this.Banned, this.Remaining = true, 0
			this.RetryAfter, this.ResetAfter = max(this.RetryAfter, banned), max(this.ResetAfter, banned)
		}
		// A slot is free again when a request ends: slots are closest if there is none, or nothing else.
		if b.Kind != bucket.Slots {
			tokens = max(tokens, this.RetryAfter)
		}
		if closest.Resource < 0 || this.CloserThan(&closest) && (b.Kind != bucket.Slots || this.RetryAfter > 0) {
			closest = this
		}
		if report > ReportDenying || report == ReportDenying && !allowed {
			statuses = s.appendStatus(statuses, i, b, found[i], after, n, allowed, banned, share, report)
		}
	}
	switch {
	case closest.Resource == Uncounted && !allowed:
		closest.Remaining = 0
	case closest.Resource >= 0 && buckets[closest.Resource].Kind == bucket.Slots:
		closest.TokensAfter = tokens
	}
	return closest, statuses
}

// tenantShare is what is left of a tenant's share of a limit. The zero tenantShare has no bound.
type tenantShare struct {
	bounds    bool
	remaining int64
	retry     time.Duration // until a charge fits the share that is denied; 0 if it fits
	more      time.Duration // until there is another token
	busyCost  int64         // a charge's tokens times the weights of all busy tenants; 0 if there is no other
}

// shareOf returns what charges of n tokens leave of a tenant's share in the state found.
func shareOf(b *bucket.Bucket, found bucket.State, charges, n int64) tenantShare {
	if found.Shares == nil {
		return tenantShare{}
	}
	of := found.Shares
	after, share := found, tenantShare{bounds: true}
	if others := of.Weights - of.Held; others > 0 {
		share.busyCost = int64(min(bucket.MaxUnits, float64(n)*float64(others+of.Weight)))
	}
	if charges > 0 {
		after = b.Charged(found, charges, n)
	}
	if b.Fits(found, 1, n) == 0 {
		share.retry = duration(max(1, found.Wait))
	}
	share.remaining, share.more = b.RemainingOf(after), duration(b.MoreOf(after))
	return share
}

// restrict restricts a verdict on the limit to the share.
func (t *tenantShare) restrict(v *Verdict, allowed bool) {
	if !t.bounds {
		return
	}
	v.Remaining = min(v.Remaining, t.remaining)
	if !allowed && t.retry > 0 && t.retry >= v.RetryAfter {
		v.RetryAfter, v.Shared = t.retry, true
	}
	if v.RetryAfter > 0 && v.RetryAfter != Never {
		v.BusyCost = t.busyCost
	}
	v.ResetAfter = max(v.ResetAfter, t.retry)
}

// retryAfter returns when n tokens may fit a resource. For more than the share of a calendar quota, but not more than
// the quota, that is when the period ends.
func (s *Set) retryAfter(i int, b *bucket.Bucket, state bucket.State, n int64) time.Duration {
	ms := b.RetryAfter(state, n)
	if ms == bucket.Never && s.whole != nil && b.Ends != 0 && n <= s.whole.resources[i].Burst {
		ms = b.Left(time.Now().UnixMilli())
	}
	return duration(ms)
}

// appendStatus appends the status of a resource, if it denies or every one is wanted. A banned client has nothing left.
func (s *Set) appendStatus(statuses []Status, i int, b *bucket.Bucket, found, after bucket.State, n int64,
	allowed bool, banned time.Duration, share tenantShare, report Report) []Status {
	if b.Kind == bucket.Slots {
		banned = 0 // they are free or not
	}
	denies := !allowed && (banned > 0 || share.retry > 0 || b.Fit(found.Level, 1, n) == 0)
	if report == ReportDenying && !denies {
		return statuses
	}
	status := Status{
		Remaining: b.Remaining(after.Level), Full: min(b.Burst, b.Capacity), More: duration(b.MoreAfter(after)),
		Resource: int32(i), Denies: denies,
	}
	if share.bounds {
		status.Remaining, status.More = min(status.Remaining, share.remaining), max(status.More, share.more)
	}
	if report == ReportFull {
		status.Reset = duration(b.ResetAfter(after))
		if denies {
			status.Retry = s.retryAfter(i, b, after, n)
		}
	}
	if denies && share.retry > 0 {
		status.Shared = share.retry >= duration(b.RetryAfter(after, n))
		status.More = max(status.More, share.retry)
		if report == ReportFull {
			status.Retry, status.Reset = max(status.Retry, share.retry), max(status.Reset, share.retry)
		}
	}
	if banned > 0 {
		if status.Remaining > 0 { // they are there when the ban ends
			status.More = 0
		}
		status.Remaining, status.More = 0, max(status.More, banned)
		if report == ReportFull {
			status.Retry, status.Reset = max(status.Retry, banned), max(status.Reset, banned)
		}
	}
	return append(statuses, status)
}

// JudgeLeased returns the verdict on n tokens that were taken ahead, of which some are left. These
// are all that this process can vouch for.
func (s *Set) JudgeLeased(states []bucket.State, n, left int64, report Report, statuses []Status) (Verdict, []Status) {
	var closest Verdict
	for i := range s.resources[:s.limits] {
		b := &s.resources[i]
		this := Verdict{
			Allowed: true, Granted: n, Resource: i, Remaining: left, ResetAfter: duration(b.ResetAfter(states[i])),
		}
		if i == 0 || this.CloserThan(&closest) {
			closest = this
		}
		if report >= ReportEvery {
			statuses = append(statuses, Status{
				Remaining: left, Full: b.Burst, More: duration(b.MoreAfter(states[i])), Resource: int32(i),
			})
		}
		if report == ReportFull {
			statuses[len(statuses)-1].Reset = this.ResetAfter
		}
	}
	return closest, statuses
}

// ResetAfter returns until when a limit is full, by the states of all.
func (s *Set) ResetAfter(limit int, states []bucket.State) time.Duration {
	return duration(s.resources[limit].ResetAfter(states[limit]))
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
func (s *Set) Banned(scope Scope, found []bucket.State) time.Duration {
	if s.bans == 0 || scope == Limits {
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
