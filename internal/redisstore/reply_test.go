package redisstore

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/wire"
)

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

// TestReply is an error of all groups of its command. One that Redis replied to several has each sent alone.
func TestReply(t *testing.T) {
	t.Parallel()
	network, oom, crossSlot := errors.New("a network's"), replyError("OOM no memory"), replyError("CROSSSLOT no")
	for name, row := range map[string]struct {
		reply  redis.Cmder
		groups int
		want   string
	}{
		"a level":             {single(7), 1, ""},
		"a level below 0":     {single(-1), 1, "the script replies 0 integers, not 1"},
		"too many":            {list(nil, 7, 8), 1, "the script replies 2 integers, not 1"},
		"an error":            {list(oom), 1, oom.Error()},
		"an error of the way": {list(network), 1, network.Error()},
		"no reply": {redis.NewStringCmd(context.Background()), 1,
			"the script replies 0 integers, not 1"},
		"levels":                       {list(nil, 7, 8), 2, ""},
		"several, denied as a whole":   {list(crossSlot), 2, wire.ErrRetrySingle.Error()},
		"several, an error of the way": {list(network), 2, network.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := command{Cmder: row.reply, groups: []*dispatch.Group{take("a", 1), take("b", 1)}[:row.groups]}
			c.decode()
			for _, g := range c.groups {
				if row.want == "" {
					require.NoError(t, g.Err)
				} else {
					require.EqualError(t, g.Err, row.want)
				}
			}
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
		"no level": {single(-1), err},
		"a level":  {single(0), nil},
		"no list":  {list(nil), err},
		"a list":   {list(nil, 1), nil},
		"an own":   {list(own), own},
	} {
		c := command{Cmder: row.cmd}
		c.notSent(err)
		require.Equal(t, row.want, c.Err(), name)
	}
}
