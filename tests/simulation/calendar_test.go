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

// Some plans have calendar quotas, alone, with others, or beside limits of the algorithm, and a
// boundary of a period in their span. Half of those have processes whose clocks are off by seconds.
//
// All processes have one clock, that of the bubble. One that is some seconds ahead sees a boundary
// as much sooner, as a zone does that is as far to the east: so each process has zones of its own,
// and the server renames what their keys say of it.

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
