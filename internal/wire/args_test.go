package wire

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// TestCommandOfOneCall has rows of keys, operation, buckets, marks, a ban and slots.
func TestCommandOfOneCall(t *testing.T) {
	t.Parallel()
	token, fixed, ban, slots := newBucket(bucket.Token), newBucket(bucket.FixedWindow), bucket.NewBan(100, 1000),
		bucket.NewSlots(3)
	floor, fixedFloor := newBucket(bucket.Token), newBucket(bucket.FixedWindow)
	floor.Leave(1)
	fixedFloor.Leave(1)
	for want, row := range map[string]struct {
		op      bucket.Op
		buckets []bucket.Bucket
	}{
		"1 a take 2 3 1 100 1000":      {bucket.Op{Verb: bucket.Take, N: 2}, []bucket.Bucket{token}},
		"1 a take 2 3 1 100 900":       {bucket.Op{Verb: bucket.Take, N: 2}, []bucket.Bucket{floor}},
		"1 a charge 2 3 1 100 1000":    {bucket.Op{Verb: bucket.Charge, N: 2}, []bucket.Bucket{floor}},
		"1 a charge 2 3 1000 fixed 10": {bucket.Op{Verb: bucket.Charge, N: 2}, []bucket.Bucket{fixedFloor}},
		"2 a b return 2 3 1 100 1000 1000 fixed 10 -1 70": {bucket.Op{Verb: bucket.Return, N: 2,
			Claims: []bucket.Claim{{Mark: -1}, {Mark: 70}}}, []bucket.Bucket{token, fixed}},
		"2 a b take 2 3 1 100 1000 ban 100 1000 2 1 0 1": {bucket.Op{Verb: bucket.Take, N: 2,
			Bans: bucket.LimitBans}, []bucket.Bucket{token, ban}},
		"2 a b take 2 3 1 100 1000 slots process 0 3 8 2 9, 1": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{token, slots}},
		"3 a b c take 2 3 1 100 1000 both 100 1000 0 1 1 process 0 3 8 2 9, 1": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{token, ban, slots}},
		"4 a b a:turns:3 b:turns:3 take 2 3 slots process 300 3 8 2 9, 3 8 2 9, 0": {
			bucket.Op{Verb: bucket.Take, N: 2, Waits: 300}, []bucket.Bucket{slots, slots}},
		"2 a b take 2 3 slots process 0 3 8 2 9, 3 8 2 9, 0": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{slots, slots}},
		"2 a b take 2 3 both 100 1000 0 0 1 process 0 3 8 2 9, 0": {bucket.Op{Verb: bucket.Take, N: 2},
			[]bucket.Bucket{ban, slots}},
	} {
		g := merged(3, row.buckets...)
		g.Op, g.Attempt = row.op, bucket.Attempt{Number: 9, Ended: 8, Held: 2}
		for i := range row.buckets {
			g.Names[i] = dispatch.Name("abc"[i : i+1])
		}
		require.Equal(t, want, text(AppendGroup(nil, g, "process")))
		require.Equal(t, len(row.buckets) == 1 && row.buckets[0].Kind == bucket.Token, IsInteger([]*dispatch.Group{g}))
	}
}

// text returns arguments as Redis gets them.
func text(args []any) string {
	var words []string
	for _, arg := range args {
		words = append(words, fmt.Sprint(arg))
	}
	return strings.Join(words, " ")
}

// TestCalendarPeriodIsSentWithWhatIsLeftOfIt, by the application host's clock.
func TestCalendarPeriodIsSentWithWhatIsLeftOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newCalendar(700)
		time.Sleep(200 * time.Millisecond)
		require.Equal(t, []any{"before", int64(500), "calendar", int64(10)}, appendBucket([]any{"before"}, &b))
	})
}

// TestJoint: a script is given the limits of all calls, then the ban, then all slots. The call with the ban is the
// first of each, as its denials ban its client. Split returns to each call what was found of its own buckets.
func TestJoint(t *testing.T) {
	t.Parallel()
	limit := newBucket(bucket.Token)
	calls := []*dispatch.Call{
		merged(1, bucket.NewSlots(7)).Call,
		merged(1, limit, limit, bucket.NewSlots(3)).Call,
		merged(1, limit, bucket.NewBan(100, 1000), bucket.NewSlots(5)).Call,
	}
	for i, c := range calls {
		c.Key, c.Hash, c.Attempt = []byte{"abc"[i]}, uint64(i), bucket.Attempt{Number: int64(i + 1)}
	}
	calls[1].Op.Waits, calls[2].Op.Bans = 300, bucket.LimitBans
	c := dispatch.NewCall()
	const keys = "10 {c}:s {b}:s {b}:s {c}:ban {c}:slots {a}:slots {b}:slots " +
		"{c}:slots:turns:5 {a}:slots:turns:7 {b}:slots:turns:3 "
	const limits = "1 100 1000 1 100 1000 1 100 1000 "
	const guards = "both 100 1000 2 1 1 P 300 5 0 0 3, 7 0 0 1, 3 0 0 2, 3"
	joint := func() string {
		Join(c, calls)
		SetNames(c, "{")
		return text(AppendGroup(nil, &dispatch.Group{Call: c, Charges: 1}, "P"))
	}
	require.Equal(t, keys+"take 1 1 "+limits+guards, joint())

	calls[1].Op.N = 4 // costs that differ follow the limits
	require.Equal(t, keys+"take 0 1 "+limits+"1 4 4 "+guards, joint())

	for i := range c.States {
		c.States[i].Level = int64(i)
	}
	Split(c, calls)
	levels := func(c *dispatch.Call) (all []int64) {
		for _, s := range c.States {
			all = append(all, s.Level)
		}
		return all
	}
	require.Equal(t, []int64{5}, levels(calls[0]))
	require.Equal(t, []int64{1, 2, 6}, levels(calls[1]))
	require.Equal(t, []int64{0, 3, 4}, levels(calls[2]))
}

// TestScriptOfBuckets depends on the kinds of limits, and on whether a ban or slots come with them.
func TestScriptOfBuckets(t *testing.T) {
	t.Parallel()
	token, fixed, sliding := newBucket(bucket.Token), newBucket(bucket.FixedWindow), newBucket(bucket.SlidingWindow)
	calendar, ban, slots := newCalendar(500), bucket.NewBan(100, 1000), bucket.NewSlots(3)
	for name, row := range map[string]struct {
		want    int
		buckets []bucket.Bucket
	}{
		"a token bucket":        {Tokens, []bucket.Bucket{token}},
		"two token buckets":     {Tokens, []bucket.Bucket{token, token}},
		"a fixed window":        {Fixed, []bucket.Bucket{fixed}},
		"a period":              {Fixed, []bucket.Bucket{calendar}},
		"a period and a window": {Fixed, []bucket.Bucket{calendar, fixed}},
		"a sliding window":      {Sliding, []bucket.Bucket{sliding}},
		"a bucket and a period": {TokensCalendar, []bucket.Bucket{token, calendar}},
		"a period between":      {TokensCalendar, []bucket.Bucket{token, calendar, token}},
		"a bucket and a window": {Mixed, []bucket.Bucket{token, fixed}},
		"both windows":          {Mixed, []bucket.Bucket{fixed, sliding}},
		"a log and a period":    {Mixed, []bucket.Bucket{sliding, calendar}},
		"all":                   {Mixed, []bucket.Bucket{token, calendar, fixed, sliding}},
		"a bucket and slots":    {WithBanOrSlots + Tokens, []bucket.Bucket{token, slots}},
		"a log and a ban":       {WithBanOrSlots + Sliding, []bucket.Bucket{sliding, ban}},
		"all, a ban and slots": {WithBanOrSlots + Mixed,
			[]bucket.Bucket{token, calendar, fixed, sliding, ban, slots}},
		"slots":                   {BanOrSlots, []bucket.Bucket{slots}},
		"a ban and slots":         {BanOrSlots, []bucket.Bucket{ban, slots}},
		"a period, tokens, a ban": {WithBanOrSlots + TokensCalendar, []bucket.Bucket{calendar, token, ban}},
	} {
		require.Equal(t, row.want, For(row.buckets), name)
		require.Equal(t, len(row.buckets) == 1 && row.want < Single, TakesEach(row.buckets), name)
	}
}

// newBucket returns a bucket of 10 tokens a second.
func newBucket(kind bucket.Kind) bucket.Bucket {
	b, _ := bucket.New(kind, "s", 10, 10, 1000)
	return b
}

// newCalendar returns the bucket of 10 tokens of a calendar period that ends in the given
// milliseconds.
func newCalendar(left int64) bucket.Bucket {
	b, _ := bucket.NewCalendar("c", 10, 60_000, time.Now().UnixMilli()+left)
	return b
}

// merged returns a group that takes single tokens.
func merged(charges int64, buckets ...bucket.Bucket) *dispatch.Group {
	c := dispatch.NewCall()
	c.Reset(bucket.Op{Verb: bucket.Take, N: 1, Charges: charges}, buckets)
	return &dispatch.Group{Call: c, Charges: charges, First: true}
}

// TestReplyToOneCall has the states of each bucket.
func TestReplyToOneCall(t *testing.T) {
	t.Parallel()
	token, fixed, ban, slots := newBucket(bucket.Token), newBucket(bucket.FixedWindow), bucket.NewBan(100, 1000),
		bucket.NewSlots(3)
	sliding, period := newBucket(bucket.SlidingWindow), newCalendar(500)
	const most = bucket.MaxUnits
	for name, row := range map[string]struct {
		buckets []bucket.Bucket
		reply   []int64
		want    []bucket.State
		err     string
	}{
		"a token bucket":    {[]bucket.Bucket{token}, []int64{7}, []bucket.State{{Level: 7}}, ""},
		"a full one":        {[]bucket.Bucket{token}, []int64{0}, []bucket.State{{}}, ""},
		"the largest level": {[]bucket.Bucket{token}, []int64{most}, []bucket.State{{Level: most}}, ""},
		"a larger level":    {[]bucket.Bucket{token}, []int64{most + 1}, nil, "the script replies 9007199254740992"},
		"a level below 0":   {[]bucket.Bucket{token}, []int64{-1}, nil, "the script replies -1"},
		"two token buckets": {[]bucket.Bucket{token, token}, []int64{7, 8},
			[]bucket.State{{Level: 7}, {Level: 8}}, ""},
		"one of them below 0": {[]bucket.Bucket{token, token}, []int64{7, -1}, nil, "the script replies -1"},
		"a window": {[]bucket.Bucket{fixed}, []int64{1, 2, 3, 4, 5},
			[]bucket.State{{Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 5}}, ""},
		"a window below 0": {[]bucket.Bucket{fixed}, []int64{-1, 2, 3, 4, 5}, nil, "the script replies -1"},
		"too few":          {[]bucket.Bucket{fixed}, []int64{1, 2, 3, 4}, nil, "the script replies 4 integers, not 5"},
		"too many": {[]bucket.Bucket{token, token}, []int64{1, 2, 3}, nil,
			"the script replies 3 integers, not 2"},
		"a ban": {[]bucket.Bucket{ban}, []int64{6, 9}, []bucket.State{{Level: 6, Wait: 9}}, ""},
		"slots": {[]bucket.Bucket{slots}, []int64{2}, []bucket.State{{Level: 2}}, ""},
		"a bucket and both": {[]bucket.Bucket{token, ban, slots}, []int64{7, 6, 9, 2},
			[]bucket.State{{Level: 7}, {Level: 6, Wait: 9}, {Level: 2}}, ""},
		"both alone": {[]bucket.Bucket{ban, slots}, []int64{6, 9, 2},
			[]bucket.State{{Level: 6, Wait: 9}, {Level: 2}}, ""},
		"a window and slots": {[]bucket.Bucket{fixed, slots}, []int64{1, 2, 3, 4, 5, 2},
			[]bucket.State{{Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 5}, {Level: 2}}, ""},
		"two windows": {[]bucket.Bucket{fixed, fixed}, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
			[]bucket.State{{Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 5},
				{Level: 6, Soon: 7, Wait: 8, Reset: 9, Mark: 10}}, ""},
		"a bucket and a period": {[]bucket.Bucket{token, period}, []int64{Whole, 7, 1, 2, 3, 4, 5},
			[]bucket.State{{Level: 7}, {Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 5}}, ""},
		"several kinds": {[]bucket.Bucket{fixed, token, sliding, slots},
			[]int64{Whole, 1, 2, 3, 4, 5, 7, 1, 2, 3, 4, 6, 9},
			[]bucket.State{{Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 5}, {Level: 7},
				{Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 6}, {Level: 9}}, ""},
		"too few of a period": {[]bucket.Bucket{token, period}, []int64{Whole, 7, 1}, nil,
			"the script replies 2 integers, not 6"},
		"a window is not whole": {[]bucket.Bucket{fixed}, []int64{Whole, 2, 3, 4, 5}, nil, "the script replies -1"},
		"one that was not known": {[]bucket.Bucket{token, token}, nil, nil,
			"the script replies 0 integers, not 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := merged(1, row.buckets...)
			g.Found = []bucket.State{{Level: 99}} // of another use
			err := cmp.Or(Decode([]*dispatch.Group{g}, row.reply, false), g.Err)
			if row.err != "" {
				require.EqualError(t, err, row.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, row.want, g.Found)
		})
	}
}

// TestReplyToSeveralCalls marks the groups to retry alone.
func TestReplyToSeveralCalls(t *testing.T) {
	t.Parallel()
	token, fixed := newBucket(bucket.Token), newBucket(bucket.FixedWindow)
	for name, row := range map[string]struct {
		of     bucket.Bucket
		reply  []int64
		errs   [2]error
		levels [2]int64
	}{
		"both":               {token, []int64{7, 8}, [2]error{}, [2]int64{7, 8}},
		"the first was not":  {token, []int64{-1, 8}, [2]error{ErrRetrySingle, nil}, [2]int64{0, 8}},
		"the second was not": {token, []int64{7, -1}, [2]error{nil, ErrRetrySingle}, [2]int64{7, 0}},
		"windows":            {fixed, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, [2]error{}, [2]int64{1, 6}},
		"a window was not": {fixed, []int64{1, 2, 3, 4, 5, -1, 0, 0, 0, 0}, [2]error{nil, ErrRetrySingle},
			[2]int64{1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := []*dispatch.Group{merged(1, row.of), merged(1, row.of)}
			require.NoError(t, Decode(calls, row.reply, false))
			for i, g := range calls {
				require.Equal(t, row.errs[i], g.Err)
				if g.Err == nil {
					require.Equal(t, row.levels[i], g.Found[0].Level)
				}
			}
		})
	}
}

// TestReplyOfCalendarPeriods has only the tokens taken from each bucket. The rest is computed: a
// period ends for all at once.
func TestReplyOfCalendarPeriods(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		charges, tokens, level, taken int64
		want                          bucket.State
	}{
		"untouched":                  {1, 1, 0, 0, bucket.State{Soon: 500, Reset: 500}},
		"room for one more":          {1, 1, 0, 8, bucket.State{Level: 8, Soon: 500, Reset: 500}},
		"room for none more":         {1, 1, 0, 9, bucket.State{Level: 9, Soon: 500, Wait: 500, Reset: 500}},
		"room for none":              {1, 1, 0, 10, bucket.State{Level: 10, Soon: 500, Wait: 500, Reset: 500}},
		"the other has no room":      {1, 1, 1000, 9, bucket.State{Level: 9, Soon: 500, Reset: 500}},
		"the other has room for one": {3, 1, 900, 8, bucket.State{Level: 8, Soon: 500, Reset: 500}},
		"several charges":            {3, 1, 0, 6, bucket.State{Level: 6, Soon: 500, Reset: 500}},
		"several charges, and full":  {3, 1, 0, 7, bucket.State{Level: 7, Soon: 500, Wait: 500, Reset: 500}},
		"of all tokens":              {1, 10, 0, 0, bucket.State{Soon: 500, Wait: 500, Reset: 500}},
		"of more than there are":     {1, 11, 0, 1, bucket.State{Level: 1, Soon: 500, Reset: 500}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := merged(row.charges, newBucket(bucket.Token), newCalendar(500), newCalendar(700),
					bucket.NewBan(100, 1000))
				g.Op.N = row.tokens
				require.NoError(t, Decode([]*dispatch.Group{g}, []int64{row.level, row.taken, 0, 0, 9}, false))
				require.NoError(t, g.Err)
				require.Equal(t, bucket.State{Level: row.level}, g.Found[0])
				require.Equal(t, row.want, g.Found[1])
				require.EqualValues(t, 700, g.Found[2].Reset)
				require.Equal(t, bucket.State{Wait: 9}, g.Found[3])
			})
		})
	}
}
