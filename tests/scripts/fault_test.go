package scripts_test

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// What scripts do where a key expires while they run, and where Redis refuses their commands. A
// hook of the server sees the commands of scripts too.

// expireDuring has a key expire during a script, once its value was read. PTTL then says 0 if the
// key is still there, or -2.
func (s *scriptKeys) expireDuring(key string, ttl int) {
	s.mini.Server().SetPreHook(func(script *server.Peer, command string, args ...string) bool {
		if command != "PTTL" || args[0] != key {
			return false
		}
		if ttl < 0 {
			inside := server.NewPeer(bufio.NewWriter(io.Discard))
			inside.Ctx = script.Ctx
			s.mini.Server().Dispatch(inside, []string{"DEL", key})
		}
		script.WriteInt(ttl)
		return true
	})
}

// refuse answers some commands with an error: of one key, or of all if it is "".
func (s *scriptKeys) refuse(key string, commands ...string) {
	s.mini.Server().SetPreHook(func(peer *server.Peer, command string, args ...string) bool {
		if !slices.Contains(commands, command) || key != "" && args[0] != key {
			return false
		}
		peer.WriteError("OOM command not allowed when used memory > 'maxmemory'.")
		return true
	})
}

func (s *scriptKeys) noFault() { s.mini.Server().SetPreHook(nil) }

// needMemory are the commands of scripts that fail where memory is full.
var needMemory = []string{"SET", "HSET", "INCRBY", "RPUSH", "LSET"}

// faultKinds are buckets and windows of 7 tokens, by the script and what it is told of the limit.
func faultKinds(t *testing.T) map[string]*scriptKeys {
	kinds := map[string]*scriptKeys{
		"token bucket": newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerSecond(7)),
		// a token is milliseconds
		"slow token bucket": newScriptKeys(t, ginlimit.TokenBucket, ginlimit.PerMinute(1).WithBurst(7)),
		"fixed window":      newScriptKeys(t, ginlimit.FixedWindow, ginlimit.PerSecond(7)),
		"sliding window":    newScriptKeys(t, ginlimit.SlidingWindow, ginlimit.PerSecond(7)),
		"calendar period":   newScriptKeys(t, ginlimit.FixedWindow, ginlimit.PerSecond(7)),
	}
	kinds["calendar period"].args = []any{700, "calendar", 7}
	return kinds
}

// faultStates are calls that make a key of some state. Each is made after some milliseconds.
var faultStates = map[string][]faultCall{
	"charged":             {{"charge", 2, 0, 0}},
	"used up":             {{"charge", 7, 0, 0}},
	"charged long ago":    {{"charge", 1, 0, 0}, {"charge", 2, 0, 600}, {"charge", 1, 0, 500}, {"take", 1, 0, 600}},
	"blocked":             {{"block", 5, 0, 0}},
	"charged and blocked": {{"charge", 2, 0, 0}, {"block", 5, 0, 0}, {"charge", 1, 0, 1}},
}

// faultCall is a call on keys of one limit, with more arguments for each.
type faultCall struct {
	verb             string
	n, charges, more int
}

// try makes a call. Of each, more are its charges, and of return, its mark.
func (s *scriptKeys) try(t *testing.T, c faultCall, keys ...string) ([]int64, error) {
	limit := s.args
	defer func() { s.args = limit }()
	if c.verb != "each" {
		s.args = slices.Repeat(limit, len(keys))
	}
	var more []any
	if c.verb == "return" || c.verb == "each" && c.charges != 1 {
		more = slices.Repeat([]any{c.more}, len(keys))
	}
	return s.call(t, c.verb, c.n, c.charges, keys, more...)
}

// save keeps a state, and returns how to have a key be in it.
func (s *scriptKeys) save(t *testing.T, calls []faultCall) (restore func(key string)) {
	require.NoError(t, s.rdb.Del(t.Context(), "saved").Err())
	for _, c := range calls {
		s.advance(time.Duration(c.more) * time.Millisecond)
		testkit.Must(s.call(t, c.verb, c.n, 0, []string{"saved"}))
	}
	return func(key string) { require.NoError(t, s.rdb.Copy(t.Context(), "saved", key, 0, true).Err()) }
}

// TestScriptsWhereAKeyExpires find nothing in it: they reply as of a key that was never there, and leave as much.
func TestScriptsWhereAKeyExpires(t *testing.T) {
	t.Parallel()
	calls := []faultCall{
		{"take", 1, 1, 0}, {"take", 7, 1, 0}, {"take", 1, 0, 0}, {"each", 1, 1, 0}, {"each", 7, 0, 1},
		{"charge", 2, 0, 0}, {"give", 1, 0, 0}, {"return", 1, 0, 5}, {"block", 7, 0, 0},
	}
	for kind, s := range faultKinds(t) {
		for name, state := range faultStates {
			if testkit.RaceShare > 1 && name != "charged" {
				continue
			}
			restore := s.save(t, state)
			before := s.state(t, "saved")
			for _, c := range calls {
				for _, keys := range [][]string{{"k"}, {"k", "new"}} {
					require.NoError(t, s.rdb.Del(t.Context(), "k", "new").Err())
					want := testkit.Must(s.try(t, c, keys...))
					left := s.state(t, "k")
					for _, ttl := range []int{0, -2} {
						what := fmt.Sprintf("%s %s: %+v of %v, PTTL %d", kind, name, c, keys, ttl)
						require.NoError(t, s.rdb.Del(t.Context(), "new").Err())
						restore("k")
						s.expireDuring("k", ttl)
						got, err := s.try(t, c, keys...)
						s.noFault()
						require.NoError(t, err, what)
						require.Equal(t, want, got, what)
						if left == `"" -2ns` && ttl == 0 { // nothing was written, and it is there for a moment longer
							require.Equal(t, before, s.state(t, "k"), what)
						} else {
							require.Equal(t, left, s.state(t, "k"), what)
						}
					}
				}
			}
		}
	}
}

// TestScriptsWhereMemoryIsFull say so and change nothing, or need no memory.
func TestScriptsWhereMemoryIsFull(t *testing.T) {
	t.Parallel()
	calls := []faultCall{{"take", 1, 1, 0}, {"take", 1, 5, 0}, {"charge", 2, 0, 0},
		{"give", 1, 0, 0}, {"block", 400, 0, 0}}
	for kind, s := range faultKinds(t) {
		refused := 0
		for name, state := range faultStates {
			if testkit.RaceShare > 1 && name != "charged" {
				continue
			}
			restore := s.save(t, state)
			prepare := func() {
				restore("k")
				require.NoError(t, s.rdb.Del(t.Context(), "new").Err())
			}
			states := func() [2]string { return [2]string{s.state(t, "k"), s.state(t, "new")} }
			for _, c := range calls {
				for _, keys := range [][]string{{"k"}, {"new"}, {"k", "new"}, {"new", "k"}} {
					what := fmt.Sprintf("%s %s: %+v of %v", kind, name, c, keys)
					prepare()
					before := states()
					s.refuse("", needMemory...)
					got, err := s.try(t, c, keys...)
					s.noFault()
					after := states()
					if err != nil {
						refused++
						require.Equal(t, before, after, what)
						continue
					}
					prepare()
					want, err := s.try(t, c, keys...)
					require.NoError(t, err, what)
					require.Equal(t, want, got, what)
					require.Equal(t, states(), after, what)
				}
			}
			for _, c := range []faultCall{{"each", 1, 1, 0}, {"each", 2, 0, 2}} {
				what := fmt.Sprintf("%s %s: %+v", kind, name, c)
				restore("k")
				restore("same")
				s.refuse("k", needMemory...)
				reply, err := s.try(t, c, "k", "same")
				s.noFault()
				require.NoError(t, err, what)
				if size := len(reply) / 2; reply[0] == -1 {
					require.Equal(t, s.state(t, "saved"), s.state(t, "k"), what)
				} else {
					require.Equal(t, reply[size:], reply[:size], what)
					require.Equal(t, s.state(t, "same"), s.state(t, "k"), what)
				}
			}
		}
		t.Logf("%s: %d calls refused", kind, refused)
		require.Greater(t, refused, 50/testkit.RaceShare/testkit.RaceShare, kind)
	}
}

// TestScriptsOfWindowsThatMayNotSetAnExpiry leave no key without one.
func TestScriptsOfWindowsThatMayNotSetAnExpiry(t *testing.T) {
	t.Parallel()
	s := newScriptKeys(t, ginlimit.SlidingWindow, ginlimit.PerSecond(7))
	s.refuse("k", "PEXPIRE")
	for _, c := range []faultCall{{"take", 1, 1, 0}, {"charge", 1, 0, 0}, {"block", 1, 0, 0}} {
		for _, keys := range [][]string{{"k"}, {"k", "other"}} {
			require.ErrorContains(t, testkit.Err(s.try(t, c, keys...)), "OOM", "%+v of %v", c, keys)
			require.Equal(t, `"" -2ns`, s.state(t, "k"), "%+v of %v", c, keys)
		}
	}
	reply := testkit.Must(s.try(t, faultCall{"each", 1, 1, 0}, "k", "other"))
	require.EqualValues(t, -1, reply[0])
	require.Equal(t, `"" -2ns`, s.state(t, "k"))
	require.EqualValues(t, 0, reply[5])
}

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
		{"token bucket", "charged", give, 1, "GET PTTL PEXPIRE DEL"},
		{"fixed window", "new", take, 1, "GET SET"},
		{"fixed window", "charged", take, 1, "GET PTTL INCRBY"},
		{"fixed window", "used up", take, 1, "GET PTTL"},
		{"fixed window", "charged", each, 2, "GET PTTL INCRBY GET PTTL INCRBY"},
		{"fixed window", "new", give, 1, "GET"},
		{"fixed window", "charged", give, 1, "GET PTTL PEXPIRE PTTL SET"},
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
		{"sliding window", "charged", give, 1, "LINDEX PTTL LLEN LINDEX PEXPIRE LSET LTRIM PTTL PEXPIRE"},
		{"sliding window", "charged", faultCall{"return", 2, 0, 0}, 1, "LINDEX PTTL LLEN LINDEX PEXPIRE LINDEX LINDEX DEL"},
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
		commands := s.commands(func() { testkit.Must(s.try(t, c.call, keys...)) })
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
