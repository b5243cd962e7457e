package limits_test

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestParseLimit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ginlimit.Limit{
		"100/m":           ginlimit.PerMinute(100),
		"5/15m":           {Rate: 5, Period: 15 * time.Minute},
		"10/s burst 20":   ginlimit.PerSecond(10).WithBurst(20),
		"1/h":             ginlimit.PerHour(1),
		"10000/d":         ginlimit.PerDay(10000),
		"10/7d":           {Rate: 10, Period: 7 * 24 * time.Hour},
		"3/100ms":         {Rate: 3, Period: 100 * time.Millisecond},
		"3/ms":            {Rate: 3, Period: time.Millisecond},
		"9/1h30m":         {Rate: 9, Period: 90 * time.Minute},
		"9/1.5s":          {Rate: 9, Period: 1500 * time.Millisecond},
		" 1/s  burst 2\n": ginlimit.PerSecond(1).WithBurst(2),
		"-1/m":            ginlimit.PerMinute(-1),
		"0/m":             ginlimit.PerMinute(0),
		"10/sec":          ginlimit.PerSecond(10),
		"5/30seconds":     {Rate: 5, Period: 30 * time.Second},
		"10/min":          ginlimit.PerMinute(10),
		"5/15minutes":     {Rate: 5, Period: 15 * time.Minute},
		"1/hour burst 3":  ginlimit.PerHour(1).WithBurst(3),
		"1/2hours":        {Rate: 1, Period: 2 * time.Hour},
		"7/24h":           ginlimit.PerDay(7),
		"7/3d":            {Rate: 7, Period: 72 * time.Hour},
	} {
		got, err := ginlimit.ParseLimit(text)
		assert.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
}

func TestParseLimitRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "100", "/", "/m", "100/", "100 / m", "100/m/s", "x/m", "1e3/m", "NaN/m", "1.5/m", "100/x", "100/mm",
		"100/0s", "100/-1m", "100/1us", "100/1500us", "0/0s", "100/m burst", "100/m burst x", "100/m burst 0",
		"100/m burst -1", "100/m bursts 5", "1/secs", "1/1h30min", "1/-1min", "1/ min", "1/MIN", "1/0min",
		"1/0d", "1/70000d", "1/day", "1/days", "1/2days", "1/1day", "1/calendar-days", "1/minmin",
		"1/1.5hour", "1/99999999999999999999sec", "1/seconds5", "100/m burst 5 5",
		"99999999999999999999/m", "4611686018427387904/m",
		"1/m burst 4611686018427387904", "1/-1d", "1/65536d", "1/999999999999h", "1/infm", "\x00", "１/m",
		strings.Repeat("9", 1<<16) + "/m",
	} {
		got, err := ginlimit.ParseLimit(text)
		assert.ErrorIs(t, err, ginlimit.ErrInvalidArgument, text)
		assert.Zero(t, got, text)
		if err != nil {
			assert.Less(t, len(err.Error()), 400)
		}
	}
}

// TestMistypedLimitsOfferWhatWasMeant, and others offer nothing.
func TestMistypedLimitsOfferWhatWasMeant(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"60/h fixed window":           `did you mean "60/h fixed-window"?`,
		"60/h fixed":                  `did you mean "60/h fixed-window"?`,
		"60/h Sliding_Window":         `did you mean "60/h sliding-window"?`,
		"60/m sliding":                `did you mean "60/m sliding-window"?`,
		"60/m slidding-window":        `did you mean "60/m sliding-window"?`,
		"60/m token bucket":           `did you mean "60/m"?`,
		"60/m burts 5":                `did you mean "60/m burst 5"?`,
		"60/m bursts 5 fixed":         "",
		"unlimitted":                  `did you mean "unlimited"?`,
		"Unlimited":                   `did you mean "unlimited"?`,
		"prohibitted":                 `did you mean "0/s"?`,
		"60 per minute":               `did you mean "60/m"?`,
		"60 requests per minute":      `did you mean "60/m"?`,
		"60 req/min":                  `did you mean "60/m"?`,
		"100 / m":                     `did you mean "100/m"?`,
		"60 an hour":                  `did you mean "60/h"?`,
		"60 per 15 minutes":           `did you mean "60/15m"?`,
		"60/minut":                    `did you mean "60/m"?`,
		"500/calender-day":            `did you mean "500/calendar-day"?`,
		"9/month in Europe/Berlin, 5": "",
		"9 a month in Europe/Berlin":  `did you mean "9/month in Europe/Berlin"?`,
		"4 inflight":                  `did you mean "4 in flight"?`,
		"4 in-flight":                 `did you mean "4 in flight"?`,
		"60/m, 1000/h":                `several limits; give each by itself: "60/m" and "1000/h"`,
		"60/m; 1000/h and 4 inflight": `several limits; give each by itself: "60/m" and "1000/h" and "4 in flight"`,
		"60/m,60/x":                   "",
		"-60/m":                       "",
		"":                            "",
		"sixty":                       "",
		"60 per day":                  "",
	} {
		_, err := ginlimit.ParseLimit(text)
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, text)
		if want == "" {
			require.NotContains(t, err.Error(), "mean", text)
			require.NotContains(t, err.Error(), "several", text)
			continue
		}
		require.ErrorContains(t, err, want, text)
	}
}

// TestADayMayBeEither, of 24 hours or the calendar's, so the text says which.
func TestADayMayBeEither(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"10/day", "10/days", "5/2days", "10/day burst 20",
		"10/day in Europe/Berlin", "10/99999999day"} {
		_, err := ginlimit.ParseLimit(text)
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, text)
		require.ErrorContains(t, err,
			"write 10/d or 10/24h for any 24 hours, and 10/calendar-day for the days of a calendar", text)
	}
}

func TestLimitTextRoundTrips(t *testing.T) {
	t.Parallel()
	limits := map[string]ginlimit.Limit{
		"100/m":                      ginlimit.PerMinute(100),
		"100/m burst 7":              ginlimit.PerMinute(100).WithBurst(7),
		"5/15m":                      {Rate: 5, Period: 15 * time.Minute},
		"5/36h":                      {Rate: 5, Period: 36 * time.Hour},
		"5/1500ms":                   {Rate: 5, Period: 1500 * time.Millisecond},
		"5/2d":                       {Rate: 5, Period: 48 * time.Hour},
		"-1/s":                       ginlimit.PerSecond(-1),
		"-1/0s burst 2":              {Rate: -1, Burst: 2},
		"unlimited":                  ginlimit.Unlimited(),
		"0/s":                        ginlimit.Prohibited(),
		"4 in flight":                ginlimit.InFlight(4),
		"5/15m fixed-window":         {Rate: 5, Period: 15 * time.Minute, Algorithm: ginlimit.FixedWindow},
		"5/15m sliding-window":       {Rate: 5, Period: 15 * time.Minute, Algorithm: ginlimit.SlidingWindow},
		"5/s burst 5 sliding-window": ginlimit.PerSecond(5).WithBurst(5).WithAlgorithm(ginlimit.SlidingWindow),
		"0/d burst 3":                ginlimit.PerDay(0).WithBurst(3),
		"1/1572888h":                 {Rate: 1, Period: 65537 * 24 * time.Hour},
		"1/65535d":                   {Rate: 1, Period: 65535 * 24 * time.Hour},
		"1/m burst 1":                ginlimit.PerMinute(1).WithBurst(1),
		"7/9223372036s":              {Rate: 7, Period: 9223372036 * time.Second},
	}
	if testkit.Has64Bits {
		limits["9000000000/m"] = ginlimit.PerMinute(testkit.AsInt(9_000_000_000))
	}
	for want, limit := range limits {
		assert.Equal(t, want, limit.String())
		text := testkit.Must(limit.MarshalText())
		var back ginlimit.Limit
		require.NoError(t, back.UnmarshalText(text), want)
		assert.Equal(t, limit, back)
	}
}

func TestLimitInJSON(t *testing.T) {
	t.Parallel()
	var policy map[string]ginlimit.Limit
	require.NoError(t, json.Unmarshal([]byte(`{"login": "5/15m", "search": "10/s burst 20"}`), &policy))
	assert.Equal(t, ginlimit.PerSecond(10).WithBurst(20), policy["search"])
	text := testkit.Must(json.Marshal(policy))
	assert.JSONEq(t, `{"login": "5/15m", "search": "10/s burst 20"}`, string(text))

	require.ErrorIs(t, json.Unmarshal([]byte(`{"login": "5"}`), &policy), ginlimit.ErrInvalidArgument)
	text = testkit.Must(json.Marshal(map[string]ginlimit.Limit{"none": {}, "slots": {InFlight: 4}}))
	require.JSONEq(t, `{"none": "", "slots": "4 in flight"}`, string(text))
	back := map[string]ginlimit.Limit{}
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, map[string]ginlimit.Limit{"none": {}, "slots": {InFlight: 4}}, back)
	require.ErrorIs(t, testkit.Err(json.Marshal(ginlimit.Limit{Rate: 1})), ginlimit.ErrInvalidArgument)
	kept := ginlimit.PerDay(1)
	require.Error(t, kept.UnmarshalText([]byte("no")))
	require.Equal(t, ginlimit.PerDay(1), kept)
}

// TestLimitOfRequestsInFlight is of a policy alone, once, and of nothing else beside it in the Limit.
func TestLimitOfRequestsInFlight(t *testing.T) {
	t.Parallel()
	limit := testkit.Must(ginlimit.ParseLimit("4 in flight"))
	require.Equal(t, ginlimit.InFlight(4), limit)
	require.Equal(t, "4 in flight", limit.String())
	l := testkit.NewLocal(t)
	hour := ginlimit.PerHour(1)
	_, err := testkit.NewPolicy(t, l, "plan", testkit.LimitsFrom(hour, limit, limit)).Allow(t.Context(), "k")
	for name, err := range map[string]error{
		"of a client":   err,
		"twice":         testkit.Err(l.Policy("test", limit, hour, limit)),
		"another twice": testkit.Err(l.Policy("test", ginlimit.WithLimits(limit, hour), ginlimit.InFlight(5))),
		"of a window":   testkit.Err(l.Policy("test", limit.WithAlgorithm(ginlimit.FixedWindow))),
		"with a burst":  testkit.Err(l.Policy("test", limit.WithBurst(4))),
	} {
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument, name)
	}
	require.NoError(t, testkit.Err(l.Policy("test", ginlimit.InFlight(1<<20))))
	for _, text := range []string{"0 in flight", "-1 in flight", "x in flight", "4 in  flight more",
		"in flight", "4/m in flight"} {
		require.ErrorIs(t, new(ginlimit.Limit).UnmarshalText([]byte(text)), ginlimit.ErrInvalidArgument, text)
	}
}

// TestLimitThatOnlyWindowsCountIsText too: a window holds more tokens than a bucket of as long a period.
func TestLimitThatOnlyWindowsCountIsText(t *testing.T) {
	t.Parallel()
	if !testkit.Has64Bits {
		t.Skip("it has no such limits")
	}
	limit := ginlimit.Limit{Rate: testkit.AsInt(1 << 52), Period: 7 * time.Millisecond}
	require.ErrorContains(t, testkit.Err(testkit.NewLocal(t).Policy("test", limit)), "too large")
	p := testkit.NewPolicy(t, testkit.NewLocal(t), "test", limit.WithAlgorithm(ginlimit.FixedWindow))
	result := testkit.Must(p.Allow(t.Context(), "k"))
	text := testkit.Must(json.Marshal(result.Limit))
	var back ginlimit.Limit
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, result.Limit, back)
}

func TestHostileLimitsAreErrors(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t)
	limits := []ginlimit.Limit{
		{}, {Burst: 1}, {Rate: 1}, {Rate: 1, Burst: 1}, {Rate: 1, Period: -1}, {Rate: 1, Period: 1},
		{Rate: 1, Period: time.Millisecond + 1}, {Rate: 1, Period: time.Second, Burst: -1},
		{Rate: 1, Period: time.Second, Burst: math.MinInt},
		{Rate: math.MaxInt, Period: math.MaxInt64}, {Rate: 0, Period: -time.Second}, {Rate: -1, Period: -1},
		{Rate: 0, Period: time.Second, Burst: -1}, {InFlight: -1}, {Rate: -1, Burst: -1},
		{Rate: -2}, {Rate: -60, Period: time.Minute}, {Rate: math.MinInt, Period: time.Minute, Burst: 1},
		{Rate: -2, Period: time.Minute, Algorithm: ginlimit.SlidingWindow},
		ginlimit.PerCalendar(-2, ginlimit.CalendarDay(nil)),
		{Rate: 1, Period: time.Second, InFlight: 1}, {Rate: -1, InFlight: 1},
	}
	if testkit.Has64Bits { // or these can be counted
		limits = append(limits, ginlimit.Limit{Rate: testkit.AsInt(1 << 62), Period: time.Second},
			ginlimit.Limit{Rate: 1, Period: time.Second, Burst: testkit.AsInt(1 << 62)},
			ginlimit.Limit{Rate: math.MaxInt, Period: time.Millisecond, Burst: 1})
	}
	for _, limit := range limits {
		assert.NotPanics(t, func() { _ = limit.String() })
		assert.ErrorIs(t, testkit.Err(l.Allow(t.Context(), "k", limit)), ginlimit.ErrInvalidArgument, limit)
		if limit != (ginlimit.Limit{}) {
			assert.ErrorIs(t, testkit.Err(limit.MarshalText()), ginlimit.ErrInvalidArgument, limit)
		}
	}
}

func TestClosedLimiterMakesNoDecision(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l, err := ginlimit.NewLimiter(rdb, testkit.Patient())
	require.NoError(t, err)
	limit := ginlimit.PerHour(1)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err = testkit.Wrap(l, ginlimit.TokenBucket).Allow(t.Context(), "k", limit)
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.NoError(t, rdb.Ping(t.Context()).Err(), "the client is the caller's")
}

func TestZeroLimiterMakesNoDecision(t *testing.T) {
	t.Parallel()
	var l ginlimit.Limiter
	_, err := l.Policy("test", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	_, err = (*ginlimit.Limiter)(nil).Policy("test", ginlimit.PerHour(1))
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	require.Contains(t, testkit.PanicText(t, func() { l.Handler("test", ginlimit.PerHour(1)) }), "not made by NewLimiter")
	require.NoError(t, l.Close())
}

// TestALimitThatTheApplicationChangesLater is still the one that was given: of a policy and of a plan.
func TestALimitThatTheApplicationChangesLater(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l, limits := testkit.NewLimiter(t, b.Redis), []ginlimit.Limit{ginlimit.PerHour(3)}
		plans := testkit.Must(l.NewPlans("plans", time.Hour,
			func(context.Context, string) ([]ginlimit.Limit, error) { return limits, nil }))
		p := testkit.NewPolicy(t, l, "api", ginlimit.WithLimits(limits...))
		planned := testkit.NewPolicy(t, l, "planned", ginlimit.WithLimitFunc(plans.Limits))
		for range 2 {
			for _, p := range []*ginlimit.Policy{p, planned} {
				require.Equal(t, 3, testkit.Must(p.Allow(t.Context(), "ann")).Limit.Rate)
				require.Equal(t, 3, testkit.Must(p.Status(t.Context(), "ann"))[0].Limit.Rate)
			}
			limits[0] = ginlimit.PerHour(9)
		}
	})
}
