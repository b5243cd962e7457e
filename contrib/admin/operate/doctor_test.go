package operate_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// examined returns what the doctor finds by a client with a hook.
func examined(t *testing.T, ctx context.Context, rdb *redis.Client, hook testkit.Hook) map[string]operate.Finding {
	t.Helper()
	other := testkit.Connect(t, rdb.Options().Addr)
	other.AddHook(hook)
	o := testkit.Must(operate.New(other, operate.Config{Prefix: "ginlimit", Timeout: testkit.Patience}))
	t.Cleanup(o.Close)
	found := map[string]operate.Finding{}
	for _, f := range o.Examine(ctx) {
		found[f.Check] = f
	}
	return found
}

// TestALateServerIsNotDead: what was found before the time was over is shown.
func TestALateServerIsNotDead(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	for at, want := range map[string][]string{"ping": {"connection"}, "info": {"connection", "keys", "checks"},
		"evalsha": {"connection", "keys", "clock", "checks"}} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		found := examined(t, ctx, rdb, func(cmds []redis.Cmder, send func() error) error {
			if cmds[0].Name() != at {
				return send()
			}
			cancel() // as if the visit's time were over
			cmds[0].SetErr(context.DeadlineExceeded)
			return context.DeadlineExceeded
		})
		for _, check := range want {
			require.Contains(t, found, check, at)
		}
		require.Equal(t, at == "ping", found["connection"].State == operate.Problem, at)
		if at != "ping" {
			require.Contains(t, found["connection"].Found, "answers in", at)
			require.Equal(t, operate.Warning, found["checks"].State, at)
		}
	}
}

// TestTheDoctorAsksSeldom, as each answer of a server that is far away takes long.
func TestTheDoctorAsksSeldom(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	for i := range 200 {
		require.NoError(t, rdb.Set(t.Context(), fmt.Sprint("ginlimit:", i), "", time.Hour).Err())
	}
	require.NoError(t, rdb.Set(t.Context(), "other", "", 0).Err())
	var calls atomic.Int64
	found := examined(t, t.Context(), rdb, testkit.EveryCall(func(send func() error) error {
		calls.Add(1)
		return send()
	}))
	require.Contains(t, found["keys"].Found, "each with an expiry")
	require.NotContains(t, found, "checks")
	require.LessOrEqual(t, calls.Load(), int64(40))
}
