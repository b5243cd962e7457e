package scripts_test

import (
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// TestScriptsUseFewCommands for nearly every call: those of a bucket or window that is not blocked.
func TestScriptsUseFewCommands(t *testing.T) {
	t.Parallel()
	take, peek, each := faultCall{"take", 1, 1, 0}, faultCall{"take", 1, 0, 0}, faultCall{"each", 1, 1, 0}
	give, block := faultCall{"give", 7, 0, 0}, faultCall{"block", 5, 0, 0}
	kinds := faultKinds(t)
	for _, c := range []struct {
		kind, state string
		call        faultCall
		keys        int
		want        string
	}{
		{"token bucket", "new", take, 1, "GET SET"},
		{"token bucket", "charged", take, 1, "GET PTTL SET"},
		{"token bucket", "charged", peek, 1, "GET PTTL"},
		{"token bucket", "used up", take, 1, "GET PTTL"},
		{"token bucket", "charged", each, 2, "MGET PTTL SET PTTL SET"},
		{"slow token bucket", "charged", take, 1, "GET PTTL PEXPIRE"},
		{"slow token bucket", "charged", each, 1, "MGET PTTL PEXPIRE"},
		{"slow token bucket", "charged", take, 2, "GET PTTL GET PTTL SET PEXPIRE"},
		{"token bucket", "new", take, 2, "GET GET SET SET"},
		{"token bucket", "charged", take, 3, "GET PTTL GET PTTL GET PTTL SET SET SET"},
		{"token bucket", "new", give, 1, "GET"},
		{"token bucket", "charged", give, 1, "GET PTTL DEL"},
		{"fixed window", "new", take, 1, "GET SET"},
		{"fixed window", "charged", take, 1, "GET PTTL INCRBY"},
		{"fixed window", "used up", take, 1, "GET PTTL"},
		{"fixed window", "charged", each, 2, "GET PTTL INCRBY GET PTTL INCRBY"},
		{"fixed window", "new", give, 1, "GET"},
		{"fixed window", "charged", give, 1, "GET PTTL PTTL SET"},
		{"fixed window", "blocked", block, 1, "GET PTTL"},
		{"calendar period", "new", take, 1, "GET SET"},
		{"calendar period", "charged", each, 1, "GET PTTL INCRBY"},
		{"sliding window", "new", take, 1, "LRANGE RPUSH PEXPIRE"},
		{"sliding window", "new", peek, 1, "LRANGE"},
		{"sliding window", "charged", take, 1, "LRANGE PTTL LSET LSET PEXPIRE"},
		{"sliding window", "used up", take, 1, "LRANGE PTTL"},
		{"sliding window", "charged long ago", take, 1, "LRANGE PTTL LSET LTRIM RPUSH PEXPIRE"},
		{"sliding window", "charged long ago", each, 1, "LRANGE PTTL LSET LTRIM RPUSH PEXPIRE"},
		{"sliding window", "new", give, 1, "LINDEX"},
		{"sliding window", "charged", give, 1, "LINDEX PTTL LLEN LINDEX LSET LTRIM PTTL PEXPIRE"},
		{"sliding window", "charged", faultCall{"return", 2, 0, 0}, 1, "LINDEX PTTL LLEN LINDEX LINDEX LINDEX DEL"},
		{"sliding window", "blocked", give, 1, "LINDEX PTTL LLEN"},
		{"sliding window", "blocked", block, 1, "LINDEX PTTL LLEN"},
		{"sliding window", "charged", faultCall{"charge", 1, 0, 0}, 1, "LINDEX PTTL LLEN LINDEX LSET LSET PTTL PEXPIRE"},
	} {
		s, keys := kinds[c.kind], []string{"k", "l", "m"}[:c.keys]
		require.NoError(t, s.rdb.Del(t.Context(), keys...).Err())
		if state := faultStates[c.state]; state != nil {
			restore := s.save(t, state)
			for _, key := range keys {
				restore(key)
			}
		}
		commands := s.commands(func() {
			testkit.Must(s.try(t, c.call, keys...))
		})
		assert.Equal(t, c.want, commands, "%s %s: %+v", c.kind, c.state, c.call)
	}

	s := kinds["slow token bucket"]
	s.source = testkit.ScriptSource(t, wire.TokensCalendar)
	s.args = append(kinds["calendar period"].args, s.args...)
	for _, want := range []string{"GET GET SET SET", "GET GET PTTL INCRBY PEXPIRE"} {
		require.Equal(t, want, s.commands(func() {
			testkit.Must(s.call(t, "take", 1, 1, []string{"day", "bucket"}))
		}))
	}
}

// commands returns those of a script.
func (s *scriptKeys) commands(call func()) string {
	var commands []string
	s.mini.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if !strings.HasPrefix(command, "EVAL") {
			commands = append(commands, command)
		}
		return false
	})
	call()
	s.noFault()
	return strings.Join(commands, " ")
}
