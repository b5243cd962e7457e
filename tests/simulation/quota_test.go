package simulation_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// simTold is what a caller is told of one limit. Some of it may last until the period ends, by the caller's clock.
type simTold struct {
	ginlimit.Result
	retry, reset bool
}

// tell returns the Result of what is told of each limit, at a time.
func (p *simPlan) tell(process int, told []simTold, periods []int, now time.Time) ginlimit.Result {
	var results []ginlimit.Result
	for i, t := range told {
		if p.calendarOf(t.Limit) != nil {
			left := testkit.Millis(max(1, p.ends(process, t.Limit, periods[i]).UnixMilli()-now.UnixMilli()))
			if t.retry && t.RetryAfter >= 0 {
				t.RetryAfter = max(t.RetryAfter, left)
			}
			if t.reset {
				t.ResetAfter = max(t.ResetAfter, left)
			}
		}
		results = append(results, t.Result)
	}
	return testkit.Closest(results)
}

// isTold reports whether an answer is what its caller is to be told. What lasts until a period ends
// is by the time of the answer, or somewhat earlier.
func (s *simulation) isTold(a *simAnswer, told []simTold, periods []int) bool {
	if len(told) == 0 {
		return false
	}
	r := a.result
	early, late := s.plan.tell(a.process, told, periods, a.start), s.plan.tell(a.process, told, periods, a.end)
	for _, want := range []ginlimit.Result{early, late} {
		most, least := want, want
		if early.Limit == late.Limit {
			most, least = early, late
		}
		if s.plan.calendarOf(want.Limit) != nil && r.RetryAfter <= most.RetryAfter && r.RetryAfter >= least.RetryAfter &&
			r.ResetAfter <= most.ResetAfter && r.ResetAfter >= least.ResetAfter {
			want.RetryAfter, want.ResetAfter = r.RetryAfter, r.ResetAfter
		}
		if want == r {
			return true
		}
	}
	return false
}

// isOf reports whether a script's call may be that of a caller who asked at a time: it is about the
// periods of that time.
func (e *simExecution) isOf(s *simulation, a *simAnswer) bool {
	for i, limit := range e.limits {
		if e.later != nil ||
			s.plan.period(a.process, s.plan.keys[e.key].versions[e.version][limit], a.start) != e.periods[i] {
			return false
		}
	}
	return true
}

// isOfNext reports whether an execution was about a period of an answer that had not begun when its
// caller was denied before: a process whose clock is ahead has taken of it.
func (s *simulation) isOfNext(e *simExecution, a *simAnswer) bool {
	for i, limit := range e.limits {
		l := s.plan.keys[e.key].versions[e.version][limit]
		if e.periods[i] == s.plan.period(a.process, l, a.start) &&
			e.periods[i] > s.plan.period(a.process, l, a.before.start) {
			return true
		}
	}
	return false
}

// periodOf returns the period of a limit that an execution was about.
func (e *simExecution) periodOf(limit int) int { return e.periods[slices.Index(e.limits, limit)] }

// checkArguments wants a calendar period's arguments to tell when it ends by the caller's clock,
// and that tokens are taken of a period that has begun by that clock, and was not over long ago.
func (v *simServer) checkArguments(process int, takes bool, b simBucketName, l ginlimit.Limit, left int64) {
	ends := v.plan.ends(process, l, b.period)
	if least, most := max(1, ends.UnixMilli()-time.Now().UnixMilli()), max(1,
		ends.UnixMilli()-v.start.UnixMilli()); left < least || left > most {
		v.violated("protocol: %s ends in %d ms, not in %d", v.name(b), least, left)
	}
	late := v.plan.timeout * 6 / 5
	if v.plan.faults != nil {
		late = 3 * time.Second
	}
	first, last := v.plan.period(process, l, time.Now().Add(-late)), v.plan.period(process, l, time.Now())
	if takes && (b.period < first || b.period > last) {
		v.violated("protocol: process %d takes of %s", process, v.name(b))
	}
}

// checkQuotas is guarantee 1 for calendar quotas, by what the server has admitted: no period admits
// more than its quota, and what was given back.
func (s *simulation) checkQuotas(key, limit int) {
	type counted struct{ period, version int }
	taken := map[counted]int64{}
	for _, e := range s.executionsOf(key, limit) {
		if e.fills() {
			clear(taken)
			continue
		}
		l := s.plan.keys[key].versions[e.version][limit]
		of := counted{e.periodOf(limit), e.version}
		if n := e.returned(); n > 0 {
			for _, version := range []int{0, 1} {
				one := counted{of.period, version}
				taken[one] = max(0, taken[one]-n)
			}
		}
		if taken[of] += e.granted; taken[of] > testkit.Burst(l) {
			s.violated("guarantee 1: %d tokens of client %d under %s were admitted in one period, until %s",
				taken[of], key, l, s.at(e.at))
			return
		}
	}
}

// checkQuotaPart is guarantee 1 for a calendar quota, by what callers were told.
func (s *simulation) checkQuotaPart(told []*simAnswer, limit int, l ginlimit.Limit) bool {
	type counted struct{ period, version int }
	sums := map[counted]int64{}
	for _, a := range told {
		if a.op == "Wait" {
			continue // it may have waited for another period
		}
		known, _ := s.charge(a)
		of := counted{s.plan.period(a.process, l, a.start), a.version}
		sums[of] += known
		if a.version == told[0].version && sums[of] > testkit.Burst(l)+s.returnedIn(a.key, limit, told[0].start, a.end) {
			s.complain(a, "guarantee 1: in one period, more was granted than "+l.String())
			return false
		}
	}
	return true
}

// checkQuotaShares is guarantee 1 for calendar quotas without Redis: in a period, a process admits
// no more than its share.
func (s *simulation) checkQuotaShares() {
	type counted struct{ process, key, limit, period, version int }
	if s.plan.strangers != nil { // beyond the bound, what is forgotten is full
		return
	}
	sums, last := map[counted]int{}, map[counted]time.Time{}
	for _, a := range s.answers { // in the order of their ends
		p := s.plan.processes[a.process]
		if p.failure != ginlimit.FailLocal || a.err != nil || a.result.Source != ginlimit.FromLocal || a.result.Granted == 0 {
			continue
		}
		for i, l := range s.plan.keys[a.key].versions[a.version] {
			if s.plan.calendarOf(l) == nil {
				continue
			}
			of := counted{a.process, a.key, i, s.plan.period(a.process, l, a.start), a.version}
			if s.filledLocally(a.process, a.key, last[of], a.end) {
				sums[of] = 0
			}
			last[of] = a.end
			if sums[of] += a.result.Granted; sums[of] > max(1, l.Rate/p.replicas) {
				s.complain(a, "guarantee 1: the process has admitted more than its share of "+l.String())
			}
		}
	}
}

// Some plans have calendar quotas, alone, with others, or beside limits of the algorithm, and a
// boundary of a period in their span. Half of those have processes whose clocks are off by seconds:
// as one that is ahead sees a boundary sooner, like a zone to the east, each process has zones of its
// own, and the server renames what their keys say of it.

// simCalendar is a calendar of a plan.
type simCalendar struct {
	testkit.Civil
	right  ginlimit.Calendar   // by a clock that is right
	of     []ginlimit.Calendar // by the clock of each process
	starts []time.Time         // of its periods by a clock that is right
}

// simFirstDay is a day on which many periods begin; so is the one before.
var simFirstDay = time.Date(2000, 3, 1, 0, 0, 0, 0, time.UTC)

// simLater is how many periods after the present one a block or a reset changes too.
const simLater = 31

// drawCalendars gives some keys calendar quotas.
func (p *simPlan) drawCalendars(r *rand.Rand) {
	if r.IntN(3) > 0 {
		return
	}
	if r.IntN(2) == 0 {
		for i := range p.processes {
			p.processes[i].skew = pick(r, 0, 0, 1, 2, 3, -1, -2, -3)
		}
	}
	p.begin = simFirstDay.AddDate(0, 0, -r.IntN(2))
	for i, name := range []string{"simA", "simB"} {
		c := &simCalendar{Civil: testkit.Civil{Unit: pick(r, "day", "week", "month")}}
		switch c.Unit {
		case "week":
			c.First = int(p.begin.Weekday() + time.Weekday(r.IntN(4)/3)) // at times no week begins in this run
		case "month":
			if c.First = 1; p.begin.Day() > 1 {
				c.First = pick(r, 29, 30, 31)
			}
		}
		p.calendars = append(p.calendars, c)
		offset := i * pick(r, 0, 0, 1, -1)
		c.right, c.Zone = c.in(name, offset)
		for _, process := range p.processes {
			of, _ := c.in(name, offset+process.skew)
			c.of = append(c.of, of)
		}
		for day := simFirstDay.AddDate(0, 0, -70); len(c.starts) < simLater+75; day = day.AddDate(0, 0, 1) {
			if c.Begins(day) {
				c.starts = append(c.starts, day.Add(-time.Duration(offset)*time.Second))
			}
		}
	}
	for i := range p.keys {
		p.keys[i].name = ginlimit.Key("p", p.keys[i].name)
		if i > 0 && &p.keys[i].versions[0] == &p.keys[0].versions[0] {
			continue
		}
		mode := r.IntN(7)
		for v, limits := range p.keys[i].versions {
			quota := func(c int) ginlimit.Limit { return ginlimit.PerCalendar(1+2*r.IntN(15)+v, p.calendars[c].right) }
			a, b := quota(0), quota(1)
			p.keys[i].versions[v] = [][]ginlimit.Limit{
				limits, {a}, {a, b}, slices.Concat(limits, []ginlimit.Limit{a}), slices.Concat([]ginlimit.Limit{a}, limits),
				slices.Concat([]ginlimit.Limit{b}, limits[:1], []ginlimit.Limit{a}), slices.Concat(limits[:1], []ginlimit.Limit{b}),
			}[mode]
		}
	}
}

// in returns the calendar in a zone so many seconds to the east.
func (c *simCalendar) in(name string, offset int) (ginlimit.Calendar, *time.Location) {
	zone := time.FixedZone(name, offset)
	switch c.Unit {
	case "week":
		return ginlimit.CalendarWeek(zone, time.Weekday(c.First)), zone
	case "month":
		return ginlimit.CalendarMonth(zone, c.First), zone
	}
	return ginlimit.CalendarDay(zone), zone
}

// drawQuotaLeases has the keys under calendar quotas alone have such large ones that a process
// leases tokens of them, and a few callers take nearly all.
func (p *simPlan) drawQuotaLeases(r *rand.Rand, length time.Duration) {
	for i, key := range p.keys {
		if slices.ContainsFunc(key.versions[0], func(l ginlimit.Limit) bool { return p.calendarOf(l) == nil }) {
			continue
		}
		for _, version := range key.versions {
			for j := range version {
				version[j].Rate = 150_000_000 + r.IntN(100)
			}
		}
		for range 2 + r.IntN(3) {
			n := int(leastBurst(key.versions[0])) - 20 - r.IntN(300)
			p.calls = append(p.calls,
				simCall{process: r.IntN(len(p.processes)), key: i, op: "AllowN", n: n, at: upTo(r, length)})
		}
	}
}

// drawBegin draws when the run begins: so that a boundary is within a time after it.
func (p *simPlan) drawBegin(r *rand.Rand, within time.Duration) {
	if p.calendars != nil {
		p.begin = p.begin.Add(-upTo(r, within))
	}
}

// calendarOf returns the calendar of a limit, or nil.
func (p *simPlan) calendarOf(l ginlimit.Limit) *simCalendar {
	for _, c := range p.calendars {
		if c.right == l.Calendar {
			return c
		}
	}
	return nil
}

// limitsOf returns the limits of a key as a process has them.
func (p *simPlan) limitsOf(process, key, version int) []ginlimit.Limit {
	limits := slices.Clone(p.keys[key].versions[version])
	for i, l := range limits {
		if lent := p.lent(key, version).lent; lent > 0 {
			limits[i].Burst += lent
		}
		if c := p.calendarOf(l); c != nil {
			limits[i].Calendar = c.of[process]
		}
	}
	return limits
}

// rightly returns the Result of a call with the limit as the plan has it.
func (p *simPlan) rightly(a *simAnswer, r ginlimit.Result) ginlimit.Result {
	if lent := p.lent(a.key, a.version).lent; lent > 0 && r.Limit.Burst > 0 {
		r.Limit.Burst -= lent
	}
	for _, c := range p.calendars {
		if c.of[a.process] == r.Limit.Calendar {
			r.Limit.Calendar = c.right
		}
	}
	r.Name = "" // of a policy
	return r
}

// do makes a call.
func (m *simMember) do(ctx context.Context, p *simPlan, a *simAnswer) (r ginlimit.Result, err error) {
	key := p.keys[a.key]
	s := testkit.Step{Op: a.op, Key: key.name, N: a.n, D: a.block, Limits: p.limitsOf(a.process, a.key, a.version)}
	switch {
	case a.settles:
		a.reservation, err = m.reserve(ctx, p, a)
		r = a.reservation.Result()
	default:
		r, err = s.Apply(ctx, m.limiter)
	}
	return p.rightly(a, r), err
}

// period returns the period that a process is in at a time, or 0 of a limit without periods.
func (p *simPlan) period(process int, l ginlimit.Limit, at time.Time) int {
	c := p.calendarOf(l)
	if c == nil {
		return 0
	}
	after := slices.IndexFunc(c.starts, func(start time.Time) bool { return start.After(at.Add(p.skewOf(process))) })
	return after - 1
}

// ends returns when a period ends by the clock of a process.
func (p *simPlan) ends(process int, l ginlimit.Limit, period int) time.Time {
	return p.calendarOf(l).starts[period+1].Add(-p.skewOf(process))
}

func (p *simPlan) skewOf(process int) time.Duration {
	return time.Duration(p.processes[process].skew) * time.Second
}

// lastPeriod returns the last period that a change changes which is asked for at a time.
func (p *simPlan) lastPeriod(a *simAnswer, l ginlimit.Limit) int {
	first := p.period(a.process, l, a.start)
	switch {
	case p.calendarOf(l) == nil || a.op == "Refund":
		return first
	case a.op == "Reset":
		return first + simLater
	}
	return min(first+simLater, p.period(a.process, l, a.start.Add(a.block).Truncate(time.Millisecond)))
}

// quotaID is what ends the key of a period.
func (c *simCalendar) quotaID(period int) string {
	id, layout := c.Unit, time.DateOnly
	switch {
	case c.Unit == "week":
		id += map[int]string{2: "tue", 3: "wed", 4: "thu"}[c.First]
	case c.Unit == "month" && c.First == 1:
		layout = "2006-01"
	case c.Unit == "month":
		id += fmt.Sprint(c.First)
	}
	return id + "@" + c.Zone.String() + ":" + c.starts[period].In(c.Zone).Format(layout)
}

var simZone = regexp.MustCompile(`@(sim[AB])-?\d+:`)

// renamed returns a call's arguments, with the periods' keys as they are by a clock that is right.
func (v *simServer) renamed(args []string) []string {
	if v.plan.calendars == nil {
		return args
	}
	args = slices.Clone(args)
	for i := 1; i < len(args); i++ {
		args[i] = simZone.ReplaceAllString(args[i], "@$1:")
	}
	return args
}
