package redisstore_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// timeout is that of the stores. It is no multiple of the pause after which a call is sent again.
const timeout = 305 * time.Millisecond

// hashSlot is the hash slot of all keys of a Redis.
type hashSlot struct {
	*testkit.Bubble
	sources redisstore.Sources

	migrates bool                     // calls on several keys are to be tried again
	moving   int                      // how many calls on one key are sent to another node first
	before   func(call string) string // is called before a call on one key, and returns an error reply or ""
	calls    []string                 // the keys, the verb and its two numbers
}

// onHashSlot runs a test on the hash slot of a Redis in a bubble.
func onHashSlot(t *testing.T, test func(t *testing.T, h *hashSlot, s *redisstore.Store)) {
	t.Helper()
	sources := testkit.ScriptSources(t)
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		h := &hashSlot{Bubble: b, sources: sources, before: func(string) string { return "" }}
		conn, err := b.Mini.Dial()
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		b.Mini.Server().SetPreHook(func(peer *server.Peer, command string, args ...string) bool {
			if !strings.HasPrefix(command, "EVAL") {
				return false
			}
			reply := h.answer(args[1:])
			if reply != "" {
				peer.WriteError(reply)
			}
			return reply != ""
		})
		test(t, h, h.newStore(t, nil))
	})
}

// answer notes a call, and returns the error with which a node of a cluster answers it, or "".
func (h *hashSlot) answer(args []string) string {
	n, _ := strconv.Atoi(args[0])
	call := strings.ReplaceAll(strings.Join(args[1:n+4], " "), "{alice}:", "")
	h.calls = append(h.calls, call)
	switch {
	case !h.migrates:
		return ""
	case n > 1:
		return "TRYAGAIN Multiple keys request during rehashing of slot"
	case h.moving > 0:
		h.moving--
		return "MOVED 1 127.0.0.1:6379"
	}
	return h.before(call)
}

// begin has the hash slot migrate from now on.
func (h *hashSlot) begin() { h.migrates, h.calls = true, nil }

func (h *hashSlot) newStore(t *testing.T,
	apply func(context.Context, *dispatch.Call, redisstore.Send) error) *redisstore.Store {
	s := redisstore.New(h.Connect(t), redisstore.Config{
		Timeout: timeout, Log: slog.New(slog.DiscardHandler), Sources: h.sources, Apply: apply,
	})
	t.Cleanup(s.Close)
	return s
}

// perHour returns the bucket of n tokens per hour, named by an ID.
func perHour(t *testing.T, kind bucket.Kind, id string, n int64) bucket.Bucket {
	t.Helper()
	b, ok := bucket.New(kind, id, n, n, time.Hour.Milliseconds())
	require.True(t, ok)
	return b
}

// newCall returns a call on buckets of a client.
func newCall(op bucket.Op, hash uint64, buckets ...bucket.Bucket) *dispatch.Call {
	c := dispatch.NewCall()
	c.Reset(op, buckets)
	c.Key, c.Hash = []byte("alice"), hash
	return c
}

// take is the operation that takes n tokens for each of some charges.
func take(charges, n int64) bucket.Op { return bucket.Op{Verb: bucket.Take, Charges: charges, N: n} }

// taken returns how many tokens are taken of each bucket, by a call on each alone.
func taken(t *testing.T, s *redisstore.Store, buckets ...bucket.Bucket) (all []int64) {
	t.Helper()
	for _, b := range buckets {
		c := newCall(bucket.Peek(1), 7, b)
		require.NoError(t, s.Do(t.Context(), c))
		all = append(all, bucket.CeilDiv(c.States[0].Level, b.Cost))
	}
	return all
}

func TestCallOnAMigratingHashSlotIsMadeKeyByKey(t *testing.T) {
	t.Parallel()
	changes := func(verb bucket.Verb, n int64, records bucket.Records) bucket.Op {
		return bucket.Op{Verb: verb, N: n, Records: records}
	}
	returns := func(left ...int64) bucket.Op { // of a token bucket of 10 and one of 6
		op := changes(bucket.Return, 2, bucket.WithRecords)
		for i, n := range left {
			units := n * []int64{360_000, 600_000}[i]
			op.Claims = append(op.Claims, bucket.Claim{Sure: units, Behind: units, Age: 1, Resets: 1})
		}
		return op
	}
	for name, row := range map[string]struct {
		before int64 // tokens taken of both before
		op     bucket.Op
		calls  []string
		taken  []int64 // of both afterwards
	}{
		"a take": {0, take(1, 2),
			[]string{"a b take 2 1", "a take 2 0", "b take 2 0", "a take 2 1", "b take 2 1"}, []int64{2, 2}},
		"as many charges as fit": {1, take(9, 2),
			[]string{"a b take 2 9", "a take 2 0", "b take 2 0", "a take 2 2", "b take 2 2"}, []int64{5, 5}},
		"a take that one denies": {5, take(1, 2), []string{"a b take 2 1", "a take 2 0", "b take 2 0"}, []int64{5, 5}},
		"a look":                 {1, bucket.Peek(2), []string{"a b take 2 0", "a take 2 0", "b take 2 0"}, []int64{1, 1}},
		"a charge": {5, changes(bucket.Charge, 2, bucket.NoRecords),
			[]string{"a b charge 2 0", "a charge 2 0", "b charge 2 0"}, []int64{7, 7}},
		"a gift": {5, changes(bucket.Give, 2, bucket.WithRecords),
			[]string{"a b a:back b:back give 2 1", "a:back give 2 2", "a give 2 3", "b:back give 2 2", "b give 2 3"},
			[]int64{3, 3}},
		"a reset": {5, changes(bucket.Reset, 1, bucket.WithRecords),
			[]string{"a b a:back b:back reset 1 1", "a:back reset 1 2", "a reset 1 3", "b:back reset 1 2", "b reset 1 3"},
			[]int64{0, 0}},
		"a return": {5, returns(2, 1), []string{"a b a:back b:back return 2 1",
			"a:back return 2 2", "a return 2 3", "b:back return 2 2", "b return 2 3"}, []int64{3, 4}},
		"a return of which one has drained": {5, returns(0, 2), []string{"a b a:back b:back return 2 1",
			"a:back return 2 2", "b:back return 2 2", "b return 2 3"}, []int64{5, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onHashSlot(t, func(t *testing.T, h *hashSlot, s *redisstore.Store) {
				both := []bucket.Bucket{perHour(t, bucket.Token, "a", 10), perHour(t, bucket.Token, "b", 6)}
				if row.before > 0 {
					require.NoError(t, s.Do(t.Context(), newCall(take(1, row.before), 7, both...)))
				}
				h.begin()
				c := newCall(row.op, 7, both...)
				require.NoError(t, s.Do(t.Context(), c))
				require.Equal(t, row.calls, h.calls)
				require.False(t, c.Attempt.Doubt)
				if row.op.Verb == bucket.Take {
					require.Equal(t, []int64{row.before * both[0].Cost, row.before * both[1].Cost},
						[]int64{c.States[0].Level, c.States[1].Level}, "what was found")
					require.False(t, c.Sent.IsZero() || c.Received.IsZero())
				}
				for i, claim := range row.op.Claims {
					require.Equal(t, claim.Sure, c.States[i].Level, "what was given back")
				}
				require.Equal(t, row.taken, taken(t, s, both...))
			})
		})
	}
}

func TestReturnIsOfWhatTheRecordLeaves(t *testing.T) {
	t.Parallel()
	onHashSlot(t, func(t *testing.T, h *hashSlot, s *redisstore.Store) {
		a := perHour(t, bucket.Token, "a", 10)
		require.NoError(t, s.Do(t.Context(), newCall(take(1, 5), 7, a)))
		give := bucket.Op{Verb: bucket.Give, N: 1, Records: bucket.WithRecords}
		require.NoError(t, s.Do(t.Context(), newCall(give, 7, a)))
		h.begin()
		claim := bucket.Claim{Behind: 2 * a.Cost, Age: 1000, Made: 1000, Resets: 1000}
		op := bucket.Op{Verb: bucket.Return, N: 2, Claims: []bucket.Claim{claim}, Records: bucket.WithRecords}
		require.NoError(t, s.Do(t.Context(), newCall(op, 7, a)))
		require.Equal(t, []int64{3}, taken(t, s, a), "one of two was given back before")
	})
}

func TestBanAndSlotsOfAMigratingHashSlotHaveNoRecord(t *testing.T) {
	t.Parallel()
	onHashSlot(t, func(t *testing.T, h *hashSlot, s *redisstore.Store) {
		h.begin()
		op := bucket.Op{Verb: bucket.Reset, N: 1, Records: bucket.WithRecords}
		c := newCall(op, 7, perHour(t, bucket.Token, "a", 10), bucket.NewBan(100, 1000))
		require.NoError(t, s.Do(t.Context(), c))
		require.Equal(t, []string{"a ban a:back reset 1 1", "a:back reset 1 2", "a reset 1 3", "ban reset 1 1"}, h.calls)
	})
}

func TestCallThatFailsOtherwiseIsNotSplit(t *testing.T) {
	t.Parallel()
	onHashSlot(t, func(t *testing.T, h *hashSlot, s *redisstore.Store) {
		_, err := h.Mini.Push("{alice}:a", "no bucket")
		require.NoError(t, err)
		both := []bucket.Bucket{perHour(t, bucket.Token, "a", 10), perHour(t, bucket.Token, "b", 6)}
		require.True(t, redisstore.IsErrorReply(s.Do(t.Context(), newCall(take(1, 2), 7, both...))))
		require.Equal(t, []string{"a b take 2 1"}, h.calls)
	})
}

func TestKeysAreNotTriedTogetherForASecond(t *testing.T) {
	t.Parallel()
	onHashSlot(t, func(t *testing.T, h *hashSlot, s *redisstore.Store) {
		both := []bucket.Bucket{perHour(t, bucket.Token, "a", 10), perHour(t, bucket.Token, "b", 6)}
		const together = "a b take 1 0"
		look := func(hash uint64) string {
			h.calls = nil
			require.NoError(t, s.Do(t.Context(), newCall(bucket.Peek(1), hash, both...)))
			return h.calls[0]
		}
		h.begin()
		require.Equal(t, together, look(7))
		h.migrates = false
		for name, row := range map[string]struct {
			hash     uint64
			together bool
		}{"the key": {7, false}, "one of its stripe": {7 + 64, false}, "another key": {8, true}} {
			require.Equal(t, row.together, look(row.hash) == together, name)
		}
		time.Sleep(time.Second - time.Millisecond)
		require.NotEqual(t, together, look(7))
		time.Sleep(time.Millisecond)
		require.Equal(t, together, look(7), "a second later")
	})
}

func TestChangeIsSentAgainWhileItsKeyMoves(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		moving int
		lasts  time.Duration
		err    bool
	}{
		"once": {1, 10 * time.Millisecond, false}, "thrice": {3, 30 * time.Millisecond, false},
		"on and on": {1000, timeout, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onHashSlot(t, func(t *testing.T, h *hashSlot, s *redisstore.Store) {
				h.begin()
				h.moving = row.moving
				start, op := time.Now(), bucket.Op{Verb: bucket.Charge, N: 2}
				err := s.Do(t.Context(),
					newCall(op, 7, perHour(t, bucket.Token, "a", 10), perHour(t, bucket.Token, "b", 6)))
				require.Equal(t, row.lasts, time.Since(start))
				require.Equal(t, row.err, err != nil)
			})
		})
	}
}
