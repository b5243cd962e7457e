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

// judge returns the verdict on an operation that is decided alone.
func judge(s *rules.Set, found []bucket.State, op bucket.Op, report rules.Report,
	statuses []rules.Status) (rules.Verdict, []rules.Status) {
	charges, allowed := s.Fit(found, op.Charges, op.N)
	return s.Judge(found, op.N, charges, allowed, report, statuses)
}

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
		"one that waiting helps":          {rules.Never, rules.Never - 1, 5, 0, 0, 9, true, false},
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

func TestStaticVerdictNeedsNoBucket(t *testing.T) {
	t.Parallel()
	ban, prohibiting := bucket.NewBan(100, 1000), new(rules.Set)
	prohibiting.Prohibit(none)
	banOnly := new(rules.Set)
	banOnly.Guard(&ban, nil)
	uncounted := rules.Verdict{Allowed: true, Granted: 3, Resource: -1, Remaining: math.MaxInt64}
	for _, set := range []*rules.Set{new(rules.Set), banOnly} {
		verdict, ok := set.Static(rules.Limits, 3)
		require.True(t, ok)
		require.Equal(t, uncounted, verdict)
	}
	_, ok := banOnly.Static(rules.Tokens, 3)
	require.False(t, ok)
	verdict, _ := judge(banOnly, make([]bucket.State, 1), bucket.Op{Charges: 1, N: 3}, rules.ReportNone, nil)
	require.Equal(t, uncounted, verdict)
	verdict, _ = prohibiting.Static(rules.All, 3)
	require.Equal(t, rules.Verdict{Resource: -2, RetryAfter: rules.Never}, verdict)
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

func TestVerdictIsThatOfTheResourceClosestToExhaustion(t *testing.T) {
	t.Parallel()
	minutes := func(level, soon, wait, reset int64) bucket.State {
		return bucket.State{Level: level, More: soon, Wait: wait, Reset: reset}
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
			got, statuses := judge(s, found[:len(s.Buckets(row.scope))], op, rules.ReportNone, nil)
			require.Equal(t, row.want, got)
			require.Empty(t, statuses)
		})
	}
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
				_, got := judge(s, found, op, report, []rules.Status{before})
				assert.Equal(t, append([]rules.Status{before}, want...), got, "report %d", report)
			}
		})
	}
}

func TestLeasedVerdictIsOfTheTokensLeft(t *testing.T) {
	t.Parallel()
	states := []bucket.State{{Level: 150}, {Level: 2, More: 400, Reset: 900}}
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

func TestTimesAreShorterThanNever(t *testing.T) {
	t.Parallel()
	longest := rules.Longest.Milliseconds()
	require.Less(t, rules.Longest, rules.Never)
	for period, want := range map[int64]time.Duration{
		longest: rules.Longest, longest + 1: rules.Longest, bucket.MaxUnits: rules.Longest, bucket.Never: rules.Never,
	} {
		require.Equal(t, want, newSet(newBucket(t, bucket.FixedWindow, "a", 1, period)).Window(0), "%d ms", period)
	}
}
