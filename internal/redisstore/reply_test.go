package redisstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

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

// list is a reply of several integers, or an error.
func list(err error, reply ...int64) redis.Cmder {
	cmd := redis.NewIntSliceCmd(context.Background())
	cmd.SetVal(reply)
	cmd.SetErr(err)
	return cmd
}

// single is a reply of one integer.
func single(reply int64) redis.Cmder {
	cmd := redis.NewIntCmd(context.Background())
	cmd.SetVal(reply)
	return cmd
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
		reply   redis.Cmder
		want    []bucket.State
		err     string
	}{
		"a token bucket":    {[]bucket.Bucket{token}, single(7), []bucket.State{{Level: 7}}, ""},
		"a full one":        {[]bucket.Bucket{token}, single(0), []bucket.State{{}}, ""},
		"the largest level": {[]bucket.Bucket{token}, single(most), []bucket.State{{Level: most}}, ""},
		"a larger level": {[]bucket.Bucket{token}, single(most + 1), nil,
			"the script replies 9007199254740992"},
		"a level below 0": {[]bucket.Bucket{token}, single(-1), nil, "the reply is -1"},
		"two token buckets": {[]bucket.Bucket{token, token}, list(nil, 7, 8),
			[]bucket.State{{Level: 7}, {Level: 8}}, ""},
		"one of them below 0": {[]bucket.Bucket{token, token}, list(nil, 7, -1), nil, "the script replies -1"},
		"a window": {[]bucket.Bucket{fixed}, list(nil, 1, 2, 3, 4, 5),
			[]bucket.State{{Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 5}}, ""},
		"a window below 0": {[]bucket.Bucket{fixed}, list(nil, -1, 2, 3, 4, 5), nil, "the script replies -1"},
		"too few": {[]bucket.Bucket{fixed}, list(nil, 1, 2, 3, 4), nil,
			"the script replies 4 integers, not 5"},
		"too many": {[]bucket.Bucket{token, token}, list(nil, 1, 2, 3), nil,
			"the script replies 3 integers, not 2"},
		"a ban": {[]bucket.Bucket{ban}, list(nil, 6, 9), []bucket.State{{Level: 6, Wait: 9}}, ""},
		"slots": {[]bucket.Bucket{slots}, list(nil, 2), []bucket.State{{Level: 2}}, ""},
		"a bucket and both": {[]bucket.Bucket{token, ban, slots}, list(nil, 7, 6, 9, 2),
			[]bucket.State{{Level: 7}, {Level: 6, Wait: 9}, {Level: 2}}, ""},
		"both alone": {[]bucket.Bucket{ban, slots}, list(nil, 6, 9, 2),
			[]bucket.State{{Level: 6, Wait: 9}, {Level: 2}}, ""},
		"a window and slots": {[]bucket.Bucket{fixed, slots}, list(nil, 1, 2, 3, 4, 5, 2),
			[]bucket.State{{Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 5}, {Level: 2}}, ""},
		"two windows": {[]bucket.Bucket{fixed, fixed}, list(nil, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
			[]bucket.State{{Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 5},
				{Level: 6, Soon: 7, Wait: 8, Reset: 9, Mark: 10}}, ""},
		"a bucket and a period": {[]bucket.Bucket{token, period}, list(nil, Whole, 7, 1, 2, 3, 4, 5),
			[]bucket.State{{Level: 7}, {Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 5}}, ""},
		"several kinds": {[]bucket.Bucket{fixed, token, sliding, slots},
			list(nil, Whole, 1, 2, 3, 4, 5, 7, 1, 2, 3, 4, 6, 9),
			[]bucket.State{{Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 5}, {Level: 7},
				{Level: 1, Soon: 2, Wait: 3, Reset: 4, Mark: 6}, {Level: 9}}, ""},
		"too few of a period": {[]bucket.Bucket{token, period}, list(nil, Whole, 7, 1), nil,
			"the script replies 2 integers, not 6"},
		"a window is not whole": {[]bucket.Bucket{fixed}, list(nil, Whole, 2, 3, 4, 5), nil, "the script replies -1"},
		"an error":              {[]bucket.Bucket{fixed}, list(replyError("OOM no memory")), nil, "OOM no memory"},
		"a command of no reply": {[]bucket.Bucket{fixed}, redis.NewStringCmd(context.Background()), nil,
			"the command is of another type"},
		"one that was not known": {[]bucket.Bucket{token, token}, list(nil), nil,
			"the script replies 0 integers, not 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := merged(1, row.buckets...)
			g.Found = []bucket.State{{Level: 99}} // of another use
			c := command{Cmder: row.reply, groups: []*dispatch.Group{g}}
			c.decode()
			if row.err != "" {
				require.EqualError(t, g.Err, row.err)
				return
			}
			require.NoError(t, g.Err)
			require.Equal(t, row.want, g.Found)
		})
	}
}

// TestReplyToSeveralCalls marks the groups to retry alone.
func TestReplyToSeveralCalls(t *testing.T) {
	t.Parallel()
	token, fixed := newBucket(bucket.Token), newBucket(bucket.FixedWindow)
	network := errors.New("a network's")
	for name, row := range map[string]struct {
		of     bucket.Bucket
		reply  redis.Cmder
		errs   [2]error
		levels [2]int64
	}{
		"both":               {token, list(nil, 7, 8), [2]error{}, [2]int64{7, 8}},
		"the first was not":  {token, list(nil, -1, 8), [2]error{errRetrySingle, nil}, [2]int64{0, 8}},
		"the second was not": {token, list(nil, 7, -1), [2]error{nil, errRetrySingle}, [2]int64{7, 0}},
		"windows":            {fixed, list(nil, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), [2]error{}, [2]int64{1, 6}},
		"a window was not": {fixed, list(nil, 1, 2, 3, 4, 5, -1, 0, 0, 0, 0), [2]error{nil, errRetrySingle},
			[2]int64{1, 0}},
		"denied as a whole": {token, list(replyError("CROSSSLOT no")), [2]error{errRetrySingle, errRetrySingle},
			[2]int64{}},
		"an error of the way": {token, list(network), [2]error{network, network}, [2]int64{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := []*dispatch.Group{merged(1, row.of), merged(1, row.of)}
			c := command{Cmder: row.reply, groups: calls}
			c.decode()
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
				c := command{Cmder: list(nil, row.level, row.taken, 0, 0, 9), groups: []*dispatch.Group{g}}
				c.decode()
				require.NoError(t, g.Err)
				require.Equal(t, bucket.State{Level: row.level}, g.Found[0])
				require.Equal(t, row.want, g.Found[1])
				require.EqualValues(t, 700, g.Found[2].Reset)
				require.Equal(t, bucket.State{Wait: 9}, g.Found[3])
			})
		})
	}
}

// TestPipelineThatWasNotSent fails the commands that have neither an error nor a value.
func TestPipelineThatWasNotSent(t *testing.T) {
	t.Parallel()
	err, own := errors.New("of the pipeline"), errors.New("its own")
	for name, row := range map[string]struct {
		cmd  redis.Cmder
		want error
	}{
		"no level":    {single(-1), err},
		"a level":     {single(0), nil},
		"no list":     {list(nil), err},
		"a list":      {list(nil, 1), nil},
		"an own":      {list(own), own},
		"of no reply": {redis.NewStringCmd(context.Background()), nil},
	} {
		c := command{Cmder: row.cmd}
		c.notSent(err)
		require.Equal(t, row.want, c.Err(), name)
	}
}
