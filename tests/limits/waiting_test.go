package limits_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestStatsCountCallersThatWait by policy: for tokens or a slot, in whatever way, under whatever options, until they
// are allowed or leave.
func TestStatsCountCallersThatWait(t *testing.T) {
	t.Parallel()
	testkit.RunSynctest(t, "in the process", func(t *testing.T) { testWaiting(t, testkit.NewLocal(t)) })
	testkit.RunInBubble(t, "in Redis", func(t *testing.T, b *testkit.Bubble) { testWaiting(t, testkit.NewLimiter(t, b.Redis)) })
}

func testWaiting(t *testing.T, l *testkit.Limiter) {
	require.Empty(t, l.Stats().Waiting)
	queue := ginlimit.WithQueue(3, time.Minute)
	p := testkit.NewPolicy(t, l, "p", ginlimit.Per(1, 5*time.Second), testkit.ByUser())
	slots := testkit.NewPolicy(t, l, "slots", ginlimit.InFlight(1), queue, testkit.ByUser())
	queues := testkit.Must(p.With(queue))
	testkit.NewPolicy(t, l, "idle", ginlimit.PerHour(1))
	waiting := func(p, slots int) {
		t.Helper()
		synctest.Wait()
		require.Equal(t, map[string]int{"p": p, "slots": slots, "idle": 0}, l.Stats().Waiting)
	}
	testkit.Must(p.Allow(t.Context(), "u"))
	waiting(0, 0)
	ctx, leave := context.WithCancel(t.Context())
	go func() { _ = p.Wait(ctx, "u") }()
	waiting(1, 0)
	router := testkit.Serve(ginlimit.AllOf(queues, slots))
	go func() { testkit.Get(router, "/", testkit.User("u")) }()
	waiting(2, 0)
	held := testkit.Must(slots.Reserve(t.Context(), "u", 1))
	go func() {
		if r := testkit.Must(slots.Reserve(t.Context(), "u", 1)); r.OK() {
			r.Release()
		}
	}()
	waiting(2, 1)
	leave()
	waiting(1, 1)
	time.Sleep(6 * time.Second)
	waiting(0, 2) // the request has its token, and waits for a slot
	held.Release()
	waiting(0, 0)
}
