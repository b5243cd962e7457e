package wire

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// text returns arguments as Redis gets them.
func text(args []any) string {
	var words []string
	for _, arg := range args {
		words = append(words, fmt.Sprint(arg))
	}
	return strings.Join(words, " ")
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

// sent is a Transport that keeps the arguments of what it is sent. Its first batch waits.
type sent struct {
	first chan struct{}
	args  []string
}

func (s *sent) Send(_ context.Context, b *dispatch.Batch) error {
	if s.first != nil {
		first := s.first
		s.first = nil
		<-first
		return nil
	}
	for _, g := range b.Groups {
		for i := range g.Names {
			g.Names[i] = dispatch.Name("k")
		}
		args := AppendGroup(nil, g, "P")
		s.args = append(s.args, fmt.Sprintf("%q", args[len(args)-1]))
	}
	return nil
}

func (*sent) Ping(context.Context, string, time.Duration) error         { return nil }
func (*sent) Reason(context.Context, string, error) (text, word string) { return "", "" }

// TestArgumentsOfTenants: the last one has two bytes for the weight and two for the charges of each tenant, then three
// for each run of charges. A lone tenant's charges are not among them.
func TestArgumentsOfTenants(t *testing.T) {
	t.Parallel()
	limit, _ := bucket.New(bucket.Token, "s", 1_000_000, 1_000_000, 1000)
	shared := []bucket.Bucket{limit, bucket.NewTenants(&limit)}
	type charge struct {
		tenant          string
		weight, charges int64
	}
	var many []charge
	weights, runs := "", ""
	for i := range 256 {
		many = append(many, charge{fmt.Sprint(i), 1, 1})
		weights, runs = weights+"\x00\x01\x00\x01", runs+string([]byte{byte(i), 0, 1})
	}
	for name, row := range map[string]struct {
		charges []charge
		want    string
	}{
		"a lone one": {[]charge{{"a", 1000, 70_000}}, "\x03\xe8\x00\x00"},
		"two": {[]charge{{"a", 1000, 300}, {"b", 2, 7}, {"a", 1000, 5}},
			"\x03\xe8\x01\x31" + "\x00\x02\x00\x07" + "\x00\x01\x2c" + "\x01\x00\x07" + "\x00\x00\x05"},
		"many": {many, weights + runs},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &sent{first: make(chan struct{})}
			first := s.first
			d := dispatch.New(time.Second, dispatch.Server{Transport: s, Conns: 1, Log: slog.New(slog.DiscardHandler)})
			defer d.Close()
			for i, of := range append([]charge{{"first", 1, 1}}, row.charges...) {
				c := dispatch.NewCall()
				tenant := bucket.Tenant{Name: of.tenant, Weight: of.weight}
				c.Set(bucket.Op{Verb: bucket.Take, N: 1, Charges: of.charges, Tenant: tenant}, shared, bucket.NewLayout(shared))
				c.Key = []byte("k")
				if i == 0 {
					c.Hash = 1 // of another key
				}
				go func() { _ = d.Do(context.Background(), c) }()
				synctest.Wait()
			}
			close(first)
			synctest.Wait()
			require.Equal(t, []string{fmt.Sprintf("%q", row.want)}, s.args, name)
		})
	}
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
		layout := bucket.NewLayout(row.buckets)
		require.Equal(t, row.want, For(layout), name)
		require.Equal(t, len(row.buckets) == 1 && row.want < Single, layout.Single, name)
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
	c.Set(bucket.Op{Verb: bucket.Take, N: 1, Charges: charges}, buckets, bucket.NewLayout(buckets))
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
		"the largest level": {[]bucket.Bucket{token}, []int64{most}, []bucket.State{{Level: most}}, ""},
		"a larger level":    {[]bucket.Bucket{token}, []int64{most + 1}, nil, "the script replies 9007199254740992"},
		"a level below 0":   {[]bucket.Bucket{token}, []int64{-1}, nil, "the script replies -1"},
		"two token buckets": {[]bucket.Bucket{token, token}, []int64{7, 8},
			[]bucket.State{{Level: 7}, {Level: 8}}, ""},
		"one of them below 0": {[]bucket.Bucket{token, token}, []int64{7, -1}, nil, "the script replies -1"},
		"a window": {[]bucket.Bucket{fixed}, []int64{1, 2, 3, 4, 5},
			[]bucket.State{{Level: 1, More: 2, Wait: 3, Reset: 4, Mark: 5}}, ""},
		"a window below 0": {[]bucket.Bucket{fixed}, []int64{-1, 2, 3, 4, 5}, nil, "the script replies -1"},
		"too few":          {[]bucket.Bucket{fixed}, []int64{1, 2, 3, 4}, nil, "the script replies 4 integers, not 5"},
		"too many": {[]bucket.Bucket{token, token}, []int64{1, 2, 3}, nil,
			"the script replies 3 integers, not 2"},
		"a bucket and both": {[]bucket.Bucket{token, ban, slots}, []int64{7, 6, 9, 2},
			[]bucket.State{{Level: 7}, {Level: 6, Wait: 9}, {Level: 2}}, ""},
		"a bucket and a period": {[]bucket.Bucket{token, period}, []int64{Whole, 7, 1, 2, 3, 4, 5},
			[]bucket.State{{Level: 7}, {Level: 1, More: 2, Wait: 3, Reset: 4, Mark: 5}}, ""},
		"several kinds": {[]bucket.Bucket{fixed, token, sliding, slots},
			[]int64{Whole, 1, 2, 3, 4, 5, 7, 1, 2, 3, 4, 6, 9},
			[]bucket.State{{Level: 1, More: 2, Wait: 3, Reset: 4, Mark: 5}, {Level: 7},
				{Level: 1, More: 2, Wait: 3, Reset: 4, Mark: 6}, {Level: 9}}, ""},
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
			err := cmp.Or(Decode([]*dispatch.Group{g}, For(g.Layout), row.reply, false), g.Err)
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
			require.NoError(t, Decode(calls, For(calls[0].Layout), row.reply, false))
			for i, g := range calls {
				require.Equal(t, row.errs[i], g.Err)
				if g.Err == nil {
					require.Equal(t, row.levels[i], g.Found[0].Level)
				}
			}
		})
	}
}
