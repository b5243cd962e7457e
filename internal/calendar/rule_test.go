package calendar

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/stretchr/testify/require"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	require.NoError(t, err)
	return z
}

// TestPeriod has the cases of clock changes that people meet. Times are local unless marked.
func TestPeriod(t *testing.T) {
	t.Parallel()
	const layout = "2006-01-02 15:04:05 -07"
	for _, row := range []struct {
		name, zone      string
		unit            Unit
		first           int
		now, start, end string
	}{
		{"a day", "UTC", Day, 0, "2026-11-22 13:00:00 +00", "2026-11-22 00:00:00 +00", "2026-11-23 00:00:00 +00"},
		{"its first moment", "UTC", Day, 0, "2026-11-22 00:00:00 +00", "2026-11-22 00:00:00 +00",
			"2026-11-23 00:00:00 +00"},
		{"of 23 hours", "Europe/Berlin", Day, 0, "2026-03-29 13:00:00 +02", "2026-03-29 00:00:00 +01",
			"2026-03-30 00:00:00 +02"},
		{"of 25 hours", "Europe/Berlin", Day, 0, "2026-10-25 02:30:00 +02", "2026-10-25 00:00:00 +02",
			"2026-10-26 00:00:00 +01"},
		{"without a midnight", "Africa/Cairo", Day, 0, "2026-04-24 05:00:00 +03", "2026-04-24 01:00:00 +03",
			"2026-04-25 00:00:00 +03"},
		{"with its first midnight", "America/Havana", Day, 0, "2026-11-01 00:30:00 -05", "2026-11-01 00:00:00 -04",
			"2026-11-02 00:00:00 -05"},
		{"after a day that was left out", "Pacific/Apia", Day, 0, "2011-12-31 05:00:00 +14", "2011-12-31 00:00:00 +14",
			"2012-01-01 00:00:00 +14"},
		{"before it", "Pacific/Apia", Day, 0, "2011-12-29 05:00:00 -10", "2011-12-29 00:00:00 -10",
			"2011-12-31 00:00:00 +14"},
		{"a week from Monday", "UTC", Week, int(time.Monday), "2026-11-22 13:00:00 +00", "2026-11-16 00:00:00 +00",
			"2026-11-23 00:00:00 +00"},
		{"a week from Sunday", "UTC", Week, int(time.Sunday), "2026-11-22 13:00:00 +00", "2026-11-22 00:00:00 +00",
			"2026-11-29 00:00:00 +00"},
		{"over a year's end", "UTC", Week, int(time.Thursday), "2027-01-02 00:00:00 +00", "2026-12-31 00:00:00 +00",
			"2027-01-07 00:00:00 +00"},
		{"a month", "Asia/Kolkata", Month, 1, "2026-11-22 13:00:00 +05", "2026-11-01 00:00:00 +05",
			"2026-12-01 00:00:00 +05"},
		{"February", "UTC", Month, 1, "2027-02-28 23:59:59 +00", "2027-02-01 00:00:00 +00", "2027-03-01 00:00:00 +00"},
		{"in a leap year", "UTC", Month, 1, "2028-02-29 00:00:00 +00", "2028-02-01 00:00:00 +00",
			"2028-03-01 00:00:00 +00"},
		{"from the 15th", "UTC", Month, 15, "2026-11-14 23:59:59 +00", "2026-10-15 00:00:00 +00",
			"2026-11-15 00:00:00 +00"},
		{"from the 15th on it", "UTC", Month, 15, "2026-11-15 00:00:00 +00", "2026-11-15 00:00:00 +00",
			"2026-12-15 00:00:00 +00"},
		{"from the 31st, before", "UTC", Month, 31, "2026-02-27 00:00:00 +00", "2026-01-31 00:00:00 +00",
			"2026-02-28 00:00:00 +00"},
		{"from the 31st in February", "UTC", Month, 31, "2026-02-28 00:00:00 +00", "2026-02-28 00:00:00 +00",
			"2026-03-31 00:00:00 +00"},
		{"from the 31st in a leap year", "UTC", Month, 31, "2028-02-28 00:00:00 +00", "2028-01-31 00:00:00 +00",
			"2028-02-29 00:00:00 +00"},
		{"from the 30th in March", "UTC", Month, 30, "2026-03-29 00:00:00 +00", "2026-02-28 00:00:00 +00",
			"2026-03-30 00:00:00 +00"},
		{"from the 31st over a year's end", "UTC", Month, 31, "2027-01-01 00:00:00 +00", "2026-12-31 00:00:00 +00",
			"2027-01-31 00:00:00 +00"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			now, err := time.Parse(layout, row.now)
			require.NoError(t, err)
			r := Rule{row.unit, row.first, zone(t, row.zone)}
			start, end := r.Period(now)
			require.Equal(t, row.start, start.In(r.Zone).Format(layout))
			require.Equal(t, row.end, end.In(r.Zone).Format(layout))
		})
	}
}

// TestPeriodsTileTime, in zones with unusual changes, at moments near these.
func TestPeriodsTileTime(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"UTC", "Europe/Berlin", "Europe/Dublin", "America/New_York", "America/Havana", "America/Sao_Paulo",
		"America/Asuncion", "America/St_Johns",
		"Africa/Cairo", "Africa/Casablanca", "Asia/Beirut", "Asia/Tehran", "Asia/Gaza", "Asia/Kathmandu", "Asia/Amman",
		"Asia/Pyongyang", "Australia/Lord_Howe",
		"Antarctica/Troll", "Antarctica/Casey", "Pacific/Apia", "Pacific/Kwajalein", "Pacific/Chatham",
		"Pacific/Kiritimati", "Atlantic/Azores", "America/Caracas",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			z, r := zone(t, name), rand.New(rand.NewPCG(1, 1))
			from := time.Date(1971, 1, 1, 0, 0, 0, 0, time.UTC)
			for range 500 {
				now := from.Add(time.Duration(r.Int64N(int64(70 * 365 * 24 * time.Hour))))
				if _, change := now.In(z).ZoneBounds(); !change.IsZero() && r.IntN(2) == 0 {
					distance := time.Duration(r.Int64N(int64(100*time.Hour))) - 50*time.Hour
					now = change.Add(distance).Truncate(time.Duration(1 + r.Int64N(int64(time.Hour))))
				}
				for _, rule := range []Rule{{Day, 0, z}, {Week, r.IntN(7), z}, {Month, 1 + r.IntN(31), z}} {
					rule.hold(t, now)
				}
			}
		})
	}
}

// hold checks what every moment's period must satisfy.
func (r Rule) hold(t *testing.T, now time.Time) {
	t.Helper()
	what := fmt.Sprintf("%+v at %s", r, now.In(r.Zone))
	start, end := r.Period(now)
	require.False(t, now.Before(start), what)
	require.True(t, now.Before(end), what)
	longest := map[Unit]int{Day: 1, Week: 7, Month: 31}[r.Unit]
	require.LessOrEqual(t, end.Sub(start), time.Duration(longest)*24*time.Hour+24*time.Hour, what)
	for _, at := range []time.Time{start, end.Add(-1)} {
		s, e := r.Period(at)
		require.True(t, s.Equal(start) && e.Equal(end), what)
	}
	next, _ := r.Period(end)
	require.True(t, next.Equal(end), what)
	local, before := start.In(r.Zone), start.Add(-1).In(r.Zone)
	require.NotEqual(t, before.YearDay(), local.YearDay(), what)
	if hour, minute, second := local.Clock(); hour+minute+second > 0 {
		began, _ := local.ZoneBounds()
		require.True(t, began.Equal(start), "%s: %s is no midnight", what, local)
	}
	if tomorrow := time.Date(before.Year(), before.Month(), before.Day()+1, 0, 0, 0, 0,
		time.UTC); tomorrow.Day() != local.Day() {
		return // a day was skipped
	}
	switch r.Unit {
	case Week:
		require.Equal(t, time.Weekday(r.First), local.Weekday(), what)
	case Month:
		last := time.Date(local.Year(), local.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
		require.Equal(t, min(r.First, last), local.Day(), what)
	}
}

// TestZone returns the same pointer for the same name.
func TestZone(t *testing.T) {
	t.Parallel()
	berlin, err := Zone("Europe/Berlin")
	require.NoError(t, err)
	require.Equal(t, "Europe/Berlin", berlin.String())
	again, err := Zone("Europe/Berlin")
	require.NoError(t, err)
	require.True(t, berlin == again)
	for _, name := range []string{"Local", "Europe//Berlin", "Europe/Atlantis", "../x", "/etc/localtime",
		"europe\\berlin", "\x00"} {
		_, err := Zone(name)
		require.Error(t, err, name)
	}
}

// TestKnown finds the named zone equal to another zone of its name.
func TestKnown(t *testing.T) {
	t.Parallel()
	berlin, err := Zone("Europe/Berlin")
	require.NoError(t, err)
	ours, winter := time.FixedZone("ours", 3600), time.FixedZone("Europe/Berlin", 3600)
	for name, row := range map[string]struct {
		zone, want *time.Location
		named      bool
	}{
		"none":                       {nil, time.UTC, true},
		"UTC":                        {time.UTC, time.UTC, true},
		"one that is loaded anew":    {zone(t, "Europe/Berlin"), berlin, true},
		"one that Zone returned":     {berlin, berlin, true},
		"one without a name":         {ours, ours, false},
		"another of the name":        {winter, winter, false},
		"another that is UTC's name": {time.FixedZone("UTC", 60), nil, false},
	} {
		known, named := Known(row.zone)
		require.Equal(t, row.named, named, name)
		if row.want != nil {
			require.True(t, row.want == known, name)
		}
	}
}

// TestNamed is true of UTC and of zones from Zone, not of other zones with the name.
func TestNamed(t *testing.T) {
	t.Parallel()
	berlin, err := Zone("Europe/Berlin")
	require.NoError(t, err)
	require.True(t, Named(time.UTC))
	require.True(t, Named(berlin))
	require.False(t, Named(zone(t, "Europe/Berlin")))
	require.False(t, Named(time.FixedZone("ours", 3600)))
}

func BenchmarkPeriod(b *testing.B) {
	r, now := Rule{Month, 15, zone(b, "Europe/Berlin")}, time.Now()
	for b.Loop() {
		r.Period(now)
	}
}
