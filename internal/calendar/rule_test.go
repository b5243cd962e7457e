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
