package limits_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// calendarModel is calendar quotas together with limits of another model, all charged or none. Its
// time is that of the bubble.
type calendarModel struct {
	other  testkit.Steppable
	quotas map[string]*modelQuota
}

// modelQuota is a quota of a key in the period that was looked at last.
type modelQuota struct {
	testkit.ModelQuota
	end time.Time
}

func newCalendarModel(a ginlimit.Algorithm) *calendarModel {
	m := &calendarModel{quotas: map[string]*modelQuota{}}
	if m.other = testkit.NewWindowModel(a); a == ginlimit.TokenBucket {
		m.other = testkit.NewBucketModel()
	}
	return m
}

func (m *calendarModel) Advance(d time.Duration) { m.other.Advance(d) }

// traceCalendars are the calendars of traces, and what they are by their documentation.
var traceCalendars = sync.OnceValue(func() (c struct {
	day, week, month ginlimit.Calendar
	oracles          map[ginlimit.Calendar]testkit.Civil
}) {
	berlin, apia := testkit.Must(time.LoadLocation("Europe/Berlin")), testkit.Must(time.LoadLocation("Pacific/Apia"))
	c.day, c.week, c.month = ginlimit.CalendarDay(nil), ginlimit.CalendarWeek(apia, time.Saturday),
		ginlimit.CalendarMonth(berlin, 31)
	c.oracles = map[ginlimit.Calendar]testkit.Civil{
		c.day: {Unit: "day", Zone: time.UTC}, c.week: {Unit: "week", First: int(time.Saturday), Zone: apia},
		c.month: {Unit: "month", First: 31, Zone: berlin},
	}
	return c
})

// quota returns a quota in the present period. A block goes on in the next one.
func (m *calendarModel) quota(key string, l ginlimit.Limit) *modelQuota {
	id := key + " " + l.Calendar.String()
	if m.quotas[id] == nil {
		m.quotas[id] = &modelQuota{}
	}
	q := m.quotas[id]
	if !time.Now().Before(q.end) {
		q.Used = 0
		_, q.end = traceCalendars().oracles[l.Calendar].Period(time.Now())
	}
	return q
}

// one is a step on one limit alone.
func (m *calendarModel) one(key string, n, least int64, l ginlimit.Limit) ginlimit.Result {
	if (l.Calendar == ginlimit.Calendar{}) {
		return m.other.Take(key, n, least, []ginlimit.Limit{l})
	}
	q := m.quota(key, l)
	r, retry, reset := q.Take(time.Now().UnixMilli(), n, least, l)
	if retry {
		r.RetryAfter = max(r.RetryAfter, time.Until(q.end))
	}
	if reset {
		r.ResetAfter = max(r.ResetAfter, time.Until(q.end))
	}
	return r
}

func (m *calendarModel) Take(key string, n, least int64, limits []ginlimit.Limit) ginlimit.Result {
	granted, allowed := n, true
	for _, l := range limits {
		look := m.one(key, 0, least, l)
		allowed = allowed && look.Allowed
		granted = min(granted, int64(look.Remaining))
	}
	if granted < least || !allowed {
		granted = 0
	}
	var results []ginlimit.Result
	for _, l := range limits {
		wants := least
		if granted > 0 {
			wants = granted
		}
		r := m.one(key, granted, wants, l)
		r.Allowed, r.Granted = allowed, int(granted)
		results = append(results, r)
	}
	return testkit.Closest(results)
}

func (m *calendarModel) Refund(key string, n int64, limits []ginlimit.Limit) {
	for _, l := range limits {
		if (l.Calendar == ginlimit.Calendar{}) {
			m.other.Refund(key, n, []ginlimit.Limit{l})
			continue
		}
		m.quota(key, l).Refund(n)
	}
}

// charge charges tokens though there may be no room: up to a burst more than all.
func (m *calendarModel) charge(key string, n int64, limits []ginlimit.Limit) {
	for _, l := range limits {
		if (l.Calendar != ginlimit.Calendar{}) {
			q := m.quota(key, l)
			q.Used += max(0, min(n, 2*int64(l.Rate)-q.Used))
			continue
		}
		switch other := m.other.(type) {
		case *testkit.BucketModel:
			b := other.Bucket(key, l)
			b.Missing.Add(b.Missing,
				testkit.Tokens(max(0,
					min(n, testkit.FloorSigned(new(big.Rat).Sub(testkit.Tokens(2*testkit.Burst(l)), b.Missing))))))
		case *testkit.WindowModel:
			w := other.Window(key, l)
			more := max(0, min(n, 2*int64(l.Rate)-int64(len(w.Taken))))
			if len(w.Taken) == 0 && more > 0 {
				w.Begun = other.Now
			}
			for range more {
				w.Taken = append(w.Taken, other.Now)
			}
		}
	}
}

// settle is a reservation of n tokens that is settled at once.
func (m *calendarModel) settle(key string, n, actual int64, limits []ginlimit.Limit) ginlimit.Result {
	r := m.Take(key, n, n, limits)
	switch {
	case !r.Allowed:
	case actual < n:
		m.Refund(key, n-actual, limits)
	default:
		m.charge(key, actual-n, limits)
	}
	return r
}

func (m *calendarModel) Block(key string, d time.Duration, limits []ginlimit.Limit) {
	for _, l := range limits {
		if (l.Calendar == ginlimit.Calendar{}) {
			m.other.Block(key, d, []ginlimit.Limit{l})
			continue
		}
		m.quota(key, l).Block(time.Now().UnixMilli(), (d + time.Millisecond - 1).Milliseconds())
	}
}

func (m *calendarModel) Reset(key string, limits []ginlimit.Limit) {
	for _, l := range limits {
		if (l.Calendar == ginlimit.Calendar{}) {
			m.other.Reset(key, []ginlimit.Limit{l})
			continue
		}
		m.quota(key, l).ModelQuota = testkit.ModelQuota{}
	}
}

// calendarTrace returns steps under limits of several kinds, over years, around boundaries, and close together.
func calendarTrace(seed uint64, length int) []testkit.Step {
	day, week, month := traceCalendars().day, traceCalendars().week, traceCalendars().month
	sets := [][]ginlimit.Limit{
		{ginlimit.PerCalendar(5, day)},
		{ginlimit.PerCalendar(1, month)},
		{ginlimit.PerCalendar(20, month), ginlimit.PerCalendar(9, week), ginlimit.PerCalendar(3, day)},
		{ginlimit.PerSecond(2), ginlimit.PerCalendar(7, day)},
		{ginlimit.PerCalendar(30, month), ginlimit.PerMinute(3), ginlimit.PerHour(7)},
		{ginlimit.PerCalendar(math.MaxInt32, month), ginlimit.PerHour(4)},
	}
	r := rand.New(rand.NewPCG(seed, 0))
	steps := make([]testkit.Step, length)
	for i := range steps {
		limits := sets[r.IntN(len(sets))]
		s := testkit.Step{Op: "AllowN", N: 1, Limits: limits,
			Key: "client " + strconv.Itoa(r.IntN(2)) + limits[0].String() + strconv.Itoa(len(limits))}
		switch r.IntN(12) {
		case 0:
			s.Wait = time.Duration(1+r.Int64N(1500)) * time.Millisecond
		case 1:
			s.Wait = time.Duration(1+r.Int64N(3600)) * time.Second
		case 2:
			s.Wait = time.Duration(1+r.Int64N(30)) * time.Hour
		case 3:
			if r.IntN(10) == 0 {
				s.Wait = time.Duration(1+r.Int64N(60)) * 24 * time.Hour
			}
		case 4:
			s.Wait = -1 // to a boundary, or the millisecond before
		}
		switch r.IntN(20) {
		case 0, 1:
			s.N = 1 + r.IntN(6)
		case 2, 3, 4:
			s.Op, s.N = "AllowUpTo", 1+r.IntN(8)
		case 5, 6:
			s.Op = "Peek"
		case 7, 8:
			s.Op, s.N = "Refund", 1+r.IntN(4)
		case 9:
			s.Op, s.D = "Block",
				time.Duration(1+r.Int64N(int64([]time.Duration{time.Second, time.Hour, 100 * time.Hour}[r.IntN(3)])))
		case 10:
			s.Op = "Reset"
		case 11, 12, 13:
			// of the tokens really taken
			s.Op, s.N, s.D = "Settle", 1+r.IntN(3), time.Duration([]int{0, r.IntN(5), r.IntN(20)}[r.IntN(3)])
		}
		if i > 0 && r.IntN(4) == 0 { // once more, as a denied client does
			s = steps[i-1]
			s.Wait = time.Duration(r.IntN(3)) * time.Duration(r.IntN(300)) * time.Millisecond
		}
		steps[i] = s
	}
	return steps
}

// followCalendar makes the steps of a trace on an engine in a bubble and on the model, which must agree at each.
func followCalendar(t *testing.T, e testkit.Engine, seed uint64, steps []testkit.Step,
	sources ...ginlimit.Source) (remembered int) {
	m, r := newCalendarModel(e.Algorithm), rand.New(rand.NewPCG(seed, 1))
	for i, s := range steps {
		if s.Wait < 0 {
			for _, l := range s.Limits {
				if oracle := traceCalendars().oracles[l.Calendar]; oracle.Zone != nil {
					_, end := oracle.Period(time.Now())
					s.Wait = max(0, time.Until(end)-time.Duration(r.IntN(2))*time.Millisecond)
				}
			}
		}
		e.Advance(s.Wait)
		m.Advance(s.Wait)
		var want ginlimit.Result
		if s.Op == "Settle" {
			want = m.settle(s.Key, int64(s.N), int64(s.D), s.Limits)
			want.Name = "test"
		} else {
			want = s.Expect(m)
		}
		got, err := s.Apply(t.Context(), e.Limiter)
		if want != (ginlimit.Result{}) {
			want.Source = sources[0]
			if slices.Contains(sources, got.Source) && !got.Allowed {
				want.Source = got.Source
			}
			if got.Source == ginlimit.FromCache {
				remembered++
			}
		}
		if err != nil || got != want {
			require.Failf(t, "differs", "seed %d, step %d at %s, %s:\nwant %+v\n got %+v, error %v",
				seed, i, time.Now(), s, want, got, err)
		}
	}
	return remembered
}

// TestCalendarTraceEqualsModel has limits of several kinds in one call, on Redis and in the process.
func TestCalendarTraceEqualsModel(t *testing.T) {
	t.Parallel()
	for _, a := range append(testkit.WindowAlgorithms, ginlimit.TokenBucket) {
		for seed := range uint64(4) {
			name := fmt.Sprintf("%s, seed %d", a, seed)
			for _, denials := range []int{0, 1000} {
				testkit.RunInBubble(t, fmt.Sprintf("%s, %d denials", name, denials), func(t *testing.T, b *testkit.Bubble) {
					b.Mini.SetTime(time.Now())
					e := testkit.Engine{
						Limiter: testkit.NewLimiter(t, b.Redis, testkit.WithAlgorithm(a),
							ginlimit.WithDenyCache(denials)), Algorithm: a,
						Advance: func(d time.Duration) { time.Sleep(d); b.Mini.SetTime(time.Now()) },
					}
					remembered := followCalendar(t, e, seed,
						calendarTrace(seed, testkit.Steps(250)), ginlimit.FromRedis, ginlimit.FromCache)
					require.Equal(t, denials > 0, remembered > 0)
				})
			}
			testkit.RunSynctest(t, name, func(t *testing.T) {
				followCalendar(t, testkit.LocalEngine(t, a), seed, calendarTrace(seed, testkit.Steps(1500)), ginlimit.FromLocal)
			})
		}
	}
}
