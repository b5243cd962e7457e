package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

func TestWhatATakeCannotKeepIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		kind    bucket.Kind
		charges int64
		other   int64  // tokens that another call takes of b once it was looked at
		reply   string // to the charge of b, if it fails
		taken   []int64
		back    bool
		doubt   bool
	}{
		"nobody takes the room":       {bucket.Token, 1, 0, "", []int64{2, 2}, false, false},
		"another leaves room":         {bucket.Token, 1, 4, "", []int64{2, 6}, false, false},
		"another takes the room":      {bucket.Token, 1, 5, "", []int64{0, 5}, true, true},
		"another takes that of one":   {bucket.Token, 3, 2, "", []int64{4, 6}, true, true},
		"the room in a window":        {bucket.FixedWindow, 1, 5, "", []int64{0, 5}, true, true},
		"the second key is not taken": {bucket.Token, 2, 0, "OOM command not allowed", []int64{0, 0}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onHashSlot(t, func(t *testing.T, h *hashSlot, s *redisstore.Store) {
				var changed []string
				other, s := s, h.newStore(t, func(ctx context.Context, c *dispatch.Call, send redisstore.Send) error {
					err := send(ctx, c)
					changed = append(changed, fmt.Sprint(string(c.Key), " ", c.Hash, " ", err))
					return err
				})
				both := []bucket.Bucket{perHour(t, row.kind, "a", 10), perHour(t, row.kind, "b", 6)}
				h.before = func(call string) string {
					if call != fmt.Sprint("b take 2 ", row.charges) {
						return ""
					}
					if row.other > 0 {
						require.NoError(t, other.Do(context.Background(), newCall(take(1, row.other), 7, both[1])))
					}
					return row.reply
				}
				h.begin()
				c := newCall(take(row.charges, 2), 7, both...)
				err := s.Do(t.Context(), c)
				require.Equal(t, row.reply != "", redisstore.IsErrorReply(err))
				require.Equal(t, row.doubt, c.Attempt.Doubt)
				require.Equal(t, row.taken, taken(t, s, both...))
				if row.back {
					require.Equal(t, []string{"alice 7 <nil>"}, changed)
				} else {
					require.Empty(t, changed)
				}
				if row.taken[0] == 0 {
					require.Zero(t, c.States[0].Soon+c.States[0].Wait, "it is as it was when it was looked at")
				}
			})
		})
	}
}

func TestGiveBackGoesOnWithoutItsCallerAndCloseWaitsForIt(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		moving int // how often the key that is given back is on its way
		taken  int64
		err    string // the beginning of what the store says of it
		lasts  time.Duration
	}{
		"at once":                 {0, 0, "<nil>", 0},
		"while the key moves":     {20, 0, "<nil>", 200 * time.Millisecond},
		"until its timeout ended": {1000, 2, "MOVED", timeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onHashSlot(t, func(t *testing.T, h *hashSlot, s *redisstore.Store) {
				said := ""
				other, s := s, h.newStore(t, func(ctx context.Context, c *dispatch.Call, send redisstore.Send) error {
					err := send(ctx, c)
					said = fmt.Sprint(err)
					return err
				})
				ctx, cancel := context.WithCancel(t.Context())
				both := []bucket.Bucket{perHour(t, bucket.Token, "a", 10), perHour(t, bucket.Token, "b", 6)}
				h.before = func(call string) string {
					if call != "b take 2 1" {
						return ""
					}
					h.moving = row.moving
					if row.moving > 0 {
						time.AfterFunc(15*time.Millisecond, cancel)
					}
					return "OOM command not allowed"
				}
				h.begin()
				start := time.Now()
				require.Error(t, s.Do(ctx, newCall(take(1, 2), 7, both...)))
				if row.moving > 0 {
					require.Equal(t, 15*time.Millisecond, time.Since(start), "it returns with its context")
				}
				s.Close()
				require.Equal(t, row.lasts, time.Since(start))
				require.True(t, strings.HasPrefix(said, row.err), said)
				h.moving = 0
				require.Equal(t, []int64{row.taken}, taken(t, other, both[0]))
				require.ErrorIs(t, s.Do(t.Context(), newCall(take(1, 2), 7, both...)), dispatch.ErrClosed)
			})
		})
	}
}

func TestEveryKeyTakenBeforeOneFailsIsGivenBack(t *testing.T) {
	t.Parallel()
	onHashSlot(t, func(t *testing.T, h *hashSlot, s *redisstore.Store) {
		a, b := perHour(t, bucket.Token, "a", 10), perHour(t, bucket.Token, "b", 6)
		c := perHour(t, bucket.Token, "c", 5)
		h.before = func(call string) string {
			return map[string]string{"c take 2 1": "OOM command not allowed"}[call]
		}
		h.begin()
		require.Error(t, s.Do(t.Context(), newCall(take(1, 2), 7, a, b, c)))
		require.Equal(t, []int64{0, 0, 0}, taken(t, s, a, b, c))
	})
}

func TestCloseWaitsFourTimeoutsForGiveBacks(t *testing.T) {
	t.Parallel()
	onHashSlot(t, func(t *testing.T, h *hashSlot, _ *redisstore.Store) {
		s := h.newStore(t, func(ctx context.Context, c *dispatch.Call, send redisstore.Send) error {
			defer time.Sleep(time.Minute)
			return send(ctx, c)
		})
		h.before = func(call string) string {
			return map[string]string{"b take 2 1": "OOM command not allowed"}[call]
		}
		h.begin()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		both := []bucket.Bucket{perHour(t, bucket.Token, "a", 10), perHour(t, bucket.Token, "b", 6)}
		require.Error(t, s.Do(ctx, newCall(take(1, 2), 7, both...)))
		start := time.Now()
		s.Close()
		require.Equal(t, 4*timeout, time.Since(start))
	})
}
