package rules_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/calendar"
	"github.com/ginlimit/ginlimit/internal/rules"
)

const day = 24 * time.Hour

// quotas returns a set of quotas of 10, one for each rule.
func quotas(t *testing.T, all ...calendar.Rule) *rules.Set {
	t.Helper()
	s := new(rules.Set)
	for _, rule := range all {
		require.True(t, s.AddCalendar(rule, 10))
	}
	return s
}

// at sleeps until a time of the bubble, which begins with the year 2000.
func at(t *testing.T, text string) time.Time {
	t.Helper()
	when, err := time.Parse(time.DateTime, text)
	require.NoError(t, err)
	time.Sleep(time.Until(when))
	return when
}

func TestSetIsRenewedWhenItsPeriodEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := newBucket(t, bucket.Token, "a", 10, second)
		s := newSet(token)
		require.True(t, s.AddCalendar(daily, 10))
		s.Add(token)
		require.True(t, s.AddCalendar(monthly, 20))
		require.Same(t, s, s.Now(), "at the first moment of the period")
		for i, today := range []string{"day:2000-01-02", "day:2000-01-03", "day:2000-01-04"} {
			before := s.Now()
			time.Sleep(time.Until(time.UnixMilli(before.Ends() - 1)))
			require.Same(t, before, s.Now(), "in the last millisecond")
			time.Sleep(time.Millisecond)
			now := s.Now()
			require.NotSame(t, before, now)
			require.Same(t, now, s.Now(), "it is made once")
			require.Equal(t, []string{"a", today, "a", "month:2000-01"}, ids(now.Buckets(rules.All)))
			require.Equal(t, time.Now().Add(day).UnixMilli(), now.Ends())
			require.Equal(t, now.Ends(), now.Buckets(rules.All)[1].Ends)
			require.Equal(t, token, now.Buckets(rules.All)[2])
			require.Equal(t, "day:2000-01-01", s.Buckets(rules.All)[1].ID, "renewal %d changes no set", i)
		}
	})
}

func TestSetHoldsUntilTheFirstOfItsPeriodsEnds(t *testing.T) {
	weekly := calendar.Rule{Unit: calendar.Week, First: int(time.Monday), Zone: time.UTC}
	for name, row := range map[string]struct {
		rules      []calendar.Rule
		prohibited calendar.Rule
		ends       []string // one after another
	}{
		"a day":                          {[]calendar.Rule{daily}, none, []string{"01-02", "01-03"}},
		"a month":                        {[]calendar.Rule{monthly}, none, []string{"02-01", "03-01"}},
		"a day and a month":              {[]calendar.Rule{daily, monthly}, none, []string{"01-02", "01-03"}},
		"a month and a week":             {[]calendar.Rule{monthly, weekly}, none, []string{"01-03", "01-10"}},
		"a week that prohibits":          {nil, weekly, []string{"01-03", "01-10"}},
		"a month, a week that prohibits": {[]calendar.Rule{monthly}, weekly, []string{"01-03", "01-10"}},
		"a day, a month that prohibits":  {[]calendar.Rule{daily}, monthly, []string{"01-02", "01-03"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := quotas(t, row.rules...)
				s.Prohibit(row.prohibited)
				for _, ends := range row.ends {
					s = s.Now()
					require.Same(t, s, s.Now())
					require.Equal(t, ends, time.UnixMilli(s.Ends()).UTC().Format("01-02"))
					time.Sleep(time.Until(time.UnixMilli(s.Ends())))
				}
			})
		})
	}
}

func TestRenewedSetReservesAndSharesAsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, slots := quotas(t, daily), bucket.NewSlots(4)
		require.Equal(t, -1, s.Leave(4))
		s.Guard(nil, &slots)
		s.KeepShare()
		for range 3 { // what is renewed is renewed again
			time.Sleep(day)
			s = s.Now()
			today := s.Buckets(rules.All)[0]
			require.EqualValues(t, 6, today.Burst)
			require.EqualValues(t, 4, today.Floor)
			require.Equal(t, []any{nil, "calendar", int64(6)}, today.Args[:])
			require.Equal(t, slots, s.Buckets(rules.All)[1])
			share := s.Share(2)
			require.Same(t, share, s.Share(2), "it is kept")
			require.Equal(t, ids(s.Buckets(rules.All)), ids(share.Buckets(rules.All)))
			require.EqualValues(t, 3, share.Burst)
		}
	})
}

func TestLaterPeriodsFollowTheLimitsUpToATime(t *testing.T) {
	const today, tomorrow, third = "day:2000-01-01", "day:2000-01-02", "day:2000-01-03"
	for name, row := range map[string]struct {
		after time.Duration // from now, the first moment of a month
		want  []string
	}{
		"now":                        {0, nil},
		"a millisecond before":       {day - time.Millisecond, nil},
		"at the end of the day":      {day, []string{"a", today, "month:2000-01", tomorrow}},
		"until the next day ends":    {2*day - time.Millisecond, []string{"a", today, "month:2000-01", tomorrow}},
		"at the end of the next day": {2 * day, []string{"a", today, "month:2000-01", tomorrow, third}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSet(newBucket(t, bucket.Token, "a", 10, second))
				require.True(t, s.AddCalendar(daily, 10))
				require.True(t, s.AddCalendar(monthly, 20))
				ban, slots := bucket.NewBan(100, 1000), bucket.NewSlots(3)
				require.Equal(t, -1, s.Leave(3))
				s.Guard(&ban, &slots)
				s.KeepShare()
				later := s.WithPeriods(time.Now().Add(row.after))
				if row.want == nil {
					require.Same(t, s, later)
					return
				}
				require.Equal(t, row.want, ids(later.Buckets(rules.Limits)))
				require.Equal(t, append(row.want, "ban", "slots"), ids(later.Buckets(rules.All)))
				require.Equal(t, ids(later.Buckets(rules.All)), ids(later.Share(7).Buckets(rules.All)))
				for _, b := range later.Buckets(rules.Limits)[3:] {
					require.EqualValues(t, 7, b.Burst)
					require.EqualValues(t, 3, b.Floor)
				}
				require.Equal(t, []string{"a", today, "month:2000-01", "ban", "slots"}, ids(s.Buckets(rules.All)))
			})
		})
	}
}

func TestLaterPeriodsAreAtMost31OfEachLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quotas(t, daily, monthly)
		later := s.WithPeriods(time.Now().Add(100_000 * day)).Buckets(rules.Limits)
		require.Len(t, later, 2+31+31)
		require.Equal(t, "day:2000-01-02", later[2].ID)
		require.Equal(t, "day:2000-02-01", later[32].ID)
		require.Equal(t, "month:2000-02", later[33].ID)
		require.Equal(t, "month:2002-08", later[63].ID)
	})
}

func TestBlockReachesIntoThe31stLaterPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at(t, "2000-01-20 12:00:00")
		token := newBucket(t, bucket.Token, "a", 10, second)
		s := newSet(token, newBucket(t, bucket.SlidingWindow, "b", 10, minute))
		require.True(t, s.AddCalendar(daily, 10))
		require.True(t, s.AddCalendar(monthly, 10))
		require.Equal(t, token.MaxBlock(), s.MaxBlock(0))
		require.EqualValues(t, int64(bucket.MaxUnits), s.MaxBlock(1))
		require.Equal(t, (12*time.Hour + 31*day).Milliseconds(), s.MaxBlock(2))
		last := time.Date(2002, 9, 1, 0, 0, 0, 0, time.UTC) // 31 months after the present one
		require.Equal(t, time.Until(last).Milliseconds(), s.MaxBlock(3))
	})
}

func TestProhibitedWindowIsThePresentPeriod(t *testing.T) {
	from25 := calendar.Rule{Unit: calendar.Month, First: 25, Zone: time.UTC}
	for name, row := range map[string]struct {
		now        string
		quota      []calendar.Rule // of 10
		small      calendar.Rule   // the quota of 3 that prohibits once 5 are reserved
		prohibited calendar.Rule
		want       time.Duration
	}{
		"none":                             {"2000-02-20 12:00:00", nil, none, none, 0},
		"a day":                            {"2000-02-20 12:00:00", nil, none, daily, day},
		"a month":                          {"2000-02-20 12:00:00", nil, none, monthly, 29 * day},
		"another month":                    {"2000-03-01 00:00:00", nil, none, monthly, 31 * day},
		"a month beside a later end":       {"2000-02-20 12:00:00", []calendar.Rule{from25}, none, monthly, 29 * day},
		"a month that prohibits, reserved": {"2000-02-20 12:00:00", []calendar.Rule{from25}, monthly, none, 29 * day},
		"a day that prohibits, reserved":   {"2000-02-20 12:00:00", []calendar.Rule{monthly}, daily, none, day},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at(t, row.now)
				s := quotas(t, row.quota...)
				s.Prohibit(row.prohibited)
				if row.small != none {
					s = quotas(t, row.quota...)
					require.True(t, s.AddCalendar(row.small, 3))
					require.Equal(t, len(row.quota), s.Leave(5))
				}
				require.Equal(t, row.want, s.ProhibitedWindow())
				time.Sleep(40 * day)
				if row.want > 0 {
					require.NotSame(t, s, s.Now())
					require.True(t, s.Now().Prohibits())
				}
			})
		})
	}
}
