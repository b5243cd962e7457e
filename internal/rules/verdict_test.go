package rules_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// ms returns milliseconds as a duration.
func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func TestVerdictIsCloserThan(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		retry, others         time.Duration
		remaining, otherLeft  int64
		reset, othersReset    time.Duration
		want, wantTheOtherWay bool
	}{
		"an equal one":                    {1, 1, 2, 2, 3, 3, false, false},
		"one with a shorter wait":         {2, 1, 5, 0, 0, 9, true, false},
		"one that waiting helps":          {rules.Never, math.MaxInt64, 5, 0, 0, 9, true, false},
		"one that is allowed":             {1, 0, 5, 0, 0, 9, true, false},
		"one with more tokens":            {1, 1, 2, 3, 0, 9, true, false},
		"one that is full sooner":         {0, 0, 2, 2, 9, 8, true, false},
		"another that no waiting allows":  {rules.Never, rules.Never, 1, 2, 0, 0, true, false},
		"an uncounted one, with few left": {0, 0, 1, math.MaxInt64, 0, 0, true, false},
	} {
		a := rules.Verdict{RetryAfter: row.retry, Remaining: row.remaining, ResetAfter: row.reset}
		b := rules.Verdict{RetryAfter: row.others, Remaining: row.otherLeft, ResetAfter: row.othersReset}
		require.Equal(t, row.want, a.CloserThan(&b), name)
		require.Equal(t, row.wantTheOtherWay, b.CloserThan(&a), name)
	}
}

func TestGiveBackAddsTokensUpToAFullBucket(t *testing.T) {
	t.Parallel()
	slots := bucket.NewSlots(3)
	s := newSet(newBucket(t, bucket.Token, "a", 10, second))
	s.Guard(nil, &slots)
	for name, row := range map[string]struct{ resource, remaining, full, n, want int64 }{
		"nothing":                   {0, 4, 10, 0, 4},
		"some tokens":               {0, 4, 10, 5, 9},
		"all that are missing":      {0, 4, 10, 6, 10},
		"more than are missing":     {0, 4, 10, 7, 10},
		"a slot, whatever it costs": {1, 1, 3, 5, 2},
		"a slot of none in use":     {1, 3, 3, 1, 3},
		"a prohibited limit":        {rules.Prohibited, 0, 0, 5, 0},
	} {
		status := rules.Status{Resource: int32(row.resource), Remaining: row.remaining, Full: row.full, More: 7, Denies: true}
		want := status
		want.Remaining = row.want
		status.GiveBack(s, row.n)
		require.Equal(t, want, status, name)
	}
}

func TestStaticVerdictNeedsNoBucket(t *testing.T) {
	t.Parallel()
	ban, slots := bucket.NewBan(100, 1000), bucket.NewSlots(3)
	guarded, empty, prohibiting := new(rules.Set), new(rules.Set), new(rules.Set)
	guarded.Guard(&ban, &slots)
	prohibiting.Prohibit(none)
	limited := newSet(newBucket(t, bucket.Token, "a", 10, second))
	uncounted := rules.Verdict{Allowed: true, Granted: 3, Resource: -1, Remaining: math.MaxInt64}
	for name, row := range map[string]struct {
		set   *rules.Set
		scope rules.Scope
		want  rules.Verdict
		ok    bool
	}{
		"of a set without limits":         {empty, rules.All, uncounted, true},
		"of a set that prohibits":         {prohibiting, rules.All, rules.Verdict{Resource: -2, RetryAfter: -1}, true},
		"of a limit":                      {limited, rules.Limits, rules.Verdict{}, false},
		"of guards, in the limits":        {guarded, rules.Limits, uncounted, true},
		"of guards, in a ban":             {guarded, rules.Tokens, rules.Verdict{}, false},
		"of guards, in all that there is": {guarded, rules.All, rules.Verdict{}, false},
	} {
		verdict, ok := row.set.Static(row.scope, 3)
		require.Equal(t, row.ok, ok, name)
		require.Equal(t, row.want, verdict, name)
	}
}

// judged is a set of a token bucket that holds 10 for a second, a window of 5 per minute, a ban and
// three slots, with what a store finds of each.
type judged struct {
	level   int64 // of the token bucket: a token weighs 100
	window  bucket.State
	ban     bucket.State
	inUse   int64 // slots
	n       int64
	charges int64
}

func (j judged) set(t *testing.T) (*rules.Set, []bucket.State) {
	ban, slots := bucket.NewBan(100, 10_000), bucket.NewSlots(3)
	s := newSet(newBucket(t, bucket.Token, "a", 10, second), newBucket(t, bucket.FixedWindow, "b", 5, minute))
	s.Guard(&ban, &slots)
	return s, []bucket.State{{Level: j.level}, j.window, j.ban, {Level: j.inUse}}
}

func TestChargesFitEachResourceOfTheScope(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		judged
		scope   rules.Scope
		charges int64
		allowed bool
	}{
		"of full buckets":               {judged{n: 1, charges: 99}, rules.Limits, 5, true},
		"one":                           {judged{n: 1, charges: 1}, rules.Limits, 1, true},
		"a look":                        {judged{n: 1}, rules.Limits, 0, true},
		"a look at an empty bucket":     {judged{n: 1, level: 1000}, rules.Limits, 0, false},
		"the bucket denies":             {judged{n: 1, charges: 1, level: 901}, rules.Limits, 0, false},
		"the window denies":             {judged{n: 2, charges: 1, window: bucket.State{Level: 4}}, rules.Limits, 0, false},
		"the window has room for some":  {judged{n: 2, charges: 9, window: bucket.State{Level: 1}}, rules.Limits, 2, true},
		"banned, but only limits count": {judged{n: 1, charges: 1, ban: bucket.State{Level: 5}}, rules.Limits, 1, true},
		"banned":                        {judged{n: 1, charges: 1, ban: bucket.State{Level: 5}}, rules.Tokens, 0, false},
		"no slot, of which none is due": {judged{n: 1, charges: 1, inUse: 3}, rules.Tokens, 1, true},
		"no slot":                       {judged{n: 1, charges: 1, inUse: 3}, rules.All, 0, false},
		"a slot":                        {judged{n: 1, charges: 4, inUse: 2}, rules.All, 1, true},
	} {
		s, found := row.set(t)
		charges, allowed := s.Fit(row.scope, found, bucket.Op{Charges: row.judged.charges, N: row.n})
		require.Equal(t, row.charges, charges, name)
		require.Equal(t, row.allowed, allowed, name)
	}
}

func TestVerdictIsThatOfTheResourceClosestToExhaustion(t *testing.T) {
	t.Parallel()
	minutes := func(level, soon, wait, reset int64) bucket.State {
		return bucket.State{Level: level, Soon: soon, Wait: wait, Reset: reset}
	}
	for name, row := range map[string]struct {
		judged
		scope rules.Scope
		want  rules.Verdict
	}{
		"a charge of full buckets": {judged{n: 2, charges: 1}, rules.Limits,
			rules.Verdict{Allowed: true, Granted: 2, Resource: 1, Remaining: 3, ResetAfter: time.Minute}},
		"a look at full buckets": {judged{n: 2}, rules.Limits,
			rules.Verdict{Allowed: true, Resource: 1, Remaining: 5}},
		"several charges": {judged{n: 2, charges: 9}, rules.Limits,
			rules.Verdict{Allowed: true, Granted: 4, Resource: 1, Remaining: 1, ResetAfter: time.Minute}},
		"the bucket has fewer left": {judged{n: 1, charges: 1, level: 800}, rules.Limits,
			rules.Verdict{Allowed: true, Granted: 1, Resource: 0, Remaining: 1, ResetAfter: ms(900)}},
		"the bucket denies": {judged{n: 2, charges: 1, level: 950}, rules.Limits,
			rules.Verdict{Resource: 0, Remaining: 0, RetryAfter: ms(150), ResetAfter: ms(950)}},
		"the window denies for longer": {judged{n: 2, charges: 1, level: 950, window: minutes(4, 10, 200, 500)}, rules.Limits,
			rules.Verdict{Resource: 1, Remaining: 1, RetryAfter: ms(200), ResetAfter: ms(500)}},
		"more than the window holds": {judged{n: 6, charges: 1, level: 1000}, rules.Limits,
			rules.Verdict{Resource: 1, Remaining: 5, RetryAfter: rules.Never}},
		"slots are left": {judged{n: 1, charges: 1}, rules.All,
			rules.Verdict{Allowed: true, Granted: 1, Resource: 1, Remaining: 4, ResetAfter: time.Minute}},
		"the last slot": {judged{n: 1, charges: 1, inUse: 2}, rules.All,
			rules.Verdict{Allowed: true, Granted: 1, Resource: 1, Remaining: 4, ResetAfter: time.Minute}},
		"no slot": {judged{n: 1, charges: 1, inUse: 3}, rules.All,
			rules.Verdict{Resource: 3, RetryAfter: time.Second, ResetAfter: time.Second}},
		"no slot, and the window denies for longer": {judged{n: 2, charges: 1, inUse: 3, window: minutes(4, 10, 2000, 5000)},
			rules.All, rules.Verdict{Resource: 1, Remaining: 1, RetryAfter: ms(2000), ResetAfter: ms(5000)}},
		"banned": {judged{n: 1, charges: 1, ban: bucket.State{Level: 3000}}, rules.Tokens,
			rules.Verdict{Banned: true, Resource: 0, RetryAfter: ms(3000), ResetAfter: ms(3000)}},
		"banned by this denial": {judged{n: 2, charges: 1, level: 950, ban: bucket.State{Wait: 3000}}, rules.Tokens,
			rules.Verdict{Banned: true, Resource: 0, RetryAfter: ms(3000), ResetAfter: ms(3000)}},
		"banned for less than the denial": {judged{n: 2, charges: 1, ban: bucket.State{Level: 100},
			window: minutes(4, 10, 200, 500)}, rules.Tokens,
			rules.Verdict{Banned: true, Resource: 1, RetryAfter: ms(200), ResetAfter: ms(500)}},
		"banned for less than until it is full": {judged{n: 1, charges: 1, ban: bucket.State{Level: 100},
			window: minutes(4, 10, 0, 500)}, rules.Tokens,
			rules.Verdict{Banned: true, Resource: 1, RetryAfter: ms(100), ResetAfter: ms(500)}},
		"banned, for more than the window holds": {judged{n: 6, charges: 1, ban: bucket.State{Level: 3000}}, rules.Tokens,
			rules.Verdict{Banned: true, Resource: 1, RetryAfter: rules.Never, ResetAfter: ms(3000)}},
		"banned, and only limits count": {judged{n: 1, charges: 1, ban: bucket.State{Level: 3000}}, rules.Limits,
			rules.Verdict{Allowed: true, Granted: 1, Resource: 1, Remaining: 4, ResetAfter: time.Minute}},
		"no ban ends an allowed charge": {judged{n: 1, charges: 1, ban: bucket.State{Wait: 3000}}, rules.Tokens,
			rules.Verdict{Allowed: true, Granted: 1, Resource: 1, Remaining: 4, ResetAfter: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, found := row.set(t)
			op := bucket.Op{Charges: row.charges, N: row.n}
			got, statuses := s.Judge(row.scope, found, op, rules.ReportNone, nil)
			require.Equal(t, row.want, got)
			require.Empty(t, statuses)
		})
	}
}

func TestVerdictWithoutLimitsIsOfTheBanOrTheSlots(t *testing.T) {
	t.Parallel()
	ban, slots := bucket.NewBan(100, 10_000), bucket.NewSlots(3)
	for name, row := range map[string]struct {
		ban, slots *bucket.Bucket
		found      []bucket.State
		want       rules.Verdict
	}{
		"no ban": {&ban, nil, []bucket.State{{}},
			rules.Verdict{Allowed: true, Granted: 3, Resource: rules.Uncounted, Remaining: math.MaxInt64}},
		"a ban": {&ban, nil, []bucket.State{{Level: 700}},
			rules.Verdict{Banned: true, Resource: rules.Uncounted, RetryAfter: ms(700), ResetAfter: ms(700)}},
		"slots":   {nil, &slots, []bucket.State{{Level: 1}}, rules.Verdict{Allowed: true, Granted: 3, Remaining: 1}},
		"no slot": {nil, &slots, []bucket.State{{Level: 3}}, rules.Verdict{RetryAfter: time.Second, ResetAfter: time.Second}},
		"a ban and slots": {&ban, &slots, []bucket.State{{Level: 700}, {}},
			rules.Verdict{Banned: true, Resource: 1, RetryAfter: ms(700), ResetAfter: ms(700)}},
	} {
		s := new(rules.Set)
		s.Guard(row.ban, row.slots)
		got, statuses := s.Judge(rules.All, row.found, bucket.Op{Charges: 1, N: 3}, rules.ReportNone, nil)
		require.Equal(t, row.want, got, name)
		require.Empty(t, statuses, name)
	}
}

func TestDenialBySetsDecidedTogetherSaysNothingIsCountedHere(t *testing.T) {
	t.Parallel()
	ban := bucket.NewBan(100, 10_000)
	s := new(rules.Set)
	s.Guard(&ban, nil)
	got, _ := s.JudgeOf(rules.All, []bucket.State{{}}, 1, 0, false, rules.ReportNone, nil)
	require.Equal(t, rules.Verdict{Resource: rules.Uncounted}, got, "another set denied")
	s = newSet(newBucket(t, bucket.Token, "a", 10, second))
	got, statuses := s.JudgeOf(rules.All, []bucket.State{{Level: 100}}, 2, 0, false, rules.ReportEvery, nil)
	require.Equal(t, rules.Verdict{Remaining: 9, ResetAfter: ms(100)}, got)
	require.Equal(t, []rules.Status{{Remaining: 9, Full: 10, More: ms(100)}}, statuses)
}

func TestStatusesAreOfWhatTheReportWants(t *testing.T) {
	t.Parallel()
	a := func(remaining int64, more time.Duration, denies bool) rules.Status {
		return rules.Status{Remaining: remaining, Full: 10, More: more, Denies: denies}
	}
	b := func(remaining int64, more time.Duration, denies bool) rules.Status {
		return rules.Status{Remaining: remaining, Full: 5, More: more, Resource: 1, Denies: denies}
	}
	slots := func(remaining int64, more time.Duration, denies bool) rules.Status {
		return rules.Status{Remaining: remaining, Full: 3, More: more, Resource: 3, Denies: denies}
	}
	for name, row := range map[string]struct {
		judged
		every   []rules.Status
		denying []rules.Status
	}{
		"a charge": {judged{n: 2, charges: 1, inUse: 1},
			[]rules.Status{a(8, ms(100), false), b(3, time.Minute, false), slots(1, 0, false)}, nil},
		"a look": {judged{n: 2, level: 50},
			[]rules.Status{a(9, ms(50), false), b(5, 0, false), slots(3, 0, false)}, nil},
		"the last slot": {judged{n: 1, charges: 1, inUse: 2},
			[]rules.Status{a(9, ms(100), false), b(4, time.Minute, false), slots(0, time.Second, false)}, nil},
		"the bucket denies": {judged{n: 2, charges: 1, level: 850},
			[]rules.Status{a(1, ms(50), true), b(5, 0, false), slots(3, 0, false)}, []rules.Status{a(1, ms(50), true)}},
		"no slot": {judged{n: 1, charges: 1, inUse: 3},
			[]rules.Status{a(10, 0, false), b(5, 0, false), slots(0, time.Second, true)},
			[]rules.Status{slots(0, time.Second, true)}},
		"banned": {judged{n: 1, charges: 1, ban: bucket.State{Level: 70}, level: 150, inUse: 1},
			[]rules.Status{a(0, ms(70), true), b(0, ms(70), true), slots(2, 0, false)},
			[]rules.Status{a(0, ms(70), true), b(0, ms(70), true)}},
		"banned for less": {judged{n: 1, charges: 1, ban: bucket.State{Level: 40}, level: 150, inUse: 3},
			[]rules.Status{a(0, ms(40), true), b(0, ms(40), true), slots(0, time.Second, true)},
			[]rules.Status{a(0, ms(40), true), b(0, ms(40), true), slots(0, time.Second, true)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, found := row.set(t)
			before := rules.Status{Resource: 9}
			for report, want := range map[rules.Report][]rules.Status{
				rules.ReportNone: nil, rules.ReportDenying: row.denying, rules.ReportEvery: row.every,
			} {
				op := bucket.Op{Charges: row.charges, N: row.n}
				_, got := s.Judge(rules.All, found, op, report, []rules.Status{before})
				assert.Equal(t, append([]rules.Status{before}, want...), got, "report %d", report)
			}
		})
	}
}

func TestLeasedVerdictIsOfTheTokensLeft(t *testing.T) {
	t.Parallel()
	states := []bucket.State{{Level: 150}, {Level: 2, Soon: 400, Reset: 900}}
	for name, row := range map[string]struct {
		states []bucket.State
		want   rules.Verdict
	}{
		"the window is full later": {states,
			rules.Verdict{Allowed: true, Granted: 2, Resource: 1, Remaining: 7, ResetAfter: ms(900)}},
		"the bucket is full later": {[]bucket.State{{Level: 950}, states[1]},
			rules.Verdict{Allowed: true, Granted: 2, Resource: 0, Remaining: 7, ResetAfter: ms(950)}},
		"both at once": {[]bucket.State{{Level: 900}, states[1]},
			rules.Verdict{Allowed: true, Granted: 2, Resource: 0, Remaining: 7, ResetAfter: ms(900)}},
		"both are full": {make([]bucket.State, 2), rules.Verdict{Allowed: true, Granted: 2, Remaining: 7}},
	} {
		s, _ := judged{}.set(t)
		for _, report := range []rules.Report{rules.ReportNone, rules.ReportDenying} {
			got, statuses := s.JudgeLeased(row.states, 2, 7, report, nil)
			require.Equal(t, row.want, got, name)
			require.Empty(t, statuses, name)
		}
		got, _ := s.JudgeLeased(row.states, 2, 7, rules.ReportEvery, nil)
		require.Equal(t, row.want, got, name)
	}
	s, _ := judged{}.set(t)
	_, statuses := s.JudgeLeased(states, 2, 7, rules.ReportEvery, []rules.Status{{Resource: 9}})
	require.Equal(t, []rules.Status{{Resource: 9},
		{Remaining: 7, Full: 10, More: ms(50)}, {Remaining: 7, Full: 5, More: ms(400), Resource: 1}}, statuses)
}

func TestClientIsBannedForAsLongAsTheBanLasts(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		ban   bucket.State
		scope rules.Scope
		want  time.Duration
	}{
		"no ban":                    {bucket.State{}, rules.Tokens, 0},
		"a ban":                     {bucket.State{Level: 70, Wait: 30}, rules.Tokens, ms(70)},
		"a ban by this denial":      {bucket.State{Level: 30, Wait: 70}, rules.All, ms(70)},
		"but only the limits count": {bucket.State{Level: 70, Wait: 70}, rules.Limits, 0},
		"longer than any duration":  {bucket.State{Level: math.MaxInt64}, rules.Tokens, math.MaxInt64},
	} {
		s, found := judged{ban: row.ban, level: 5}.set(t)
		require.Equal(t, row.want, s.Banned(row.scope, found), name)
	}
	s := newSet(newBucket(t, bucket.Token, "a", 10, second))
	require.Zero(t, s.Banned(rules.All, []bucket.State{{Level: 70}}), "the set has none")
}

func TestTimesAreAtMostTheLongestDuration(t *testing.T) {
	t.Parallel()
	const longest = math.MaxInt64 / 1_000_000 // milliseconds in a Duration
	for period, want := range map[int64]time.Duration{
		longest: longest * time.Millisecond, longest + 1: math.MaxInt64, math.MaxInt64: math.MaxInt64,
	} {
		require.Equal(t, want, newSet(newBucket(t, bucket.FixedWindow, "a", 1, period)).Window(0), "%d ms", period)
	}
}
