package testkit

import (
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// LeaseLife is the life of a lease in these tests.
const LeaseLife = time.Minute

// LeaseBurst is how many tokens of [LeasePerMinute] a policy with leases of [LeaseLife] has at once.
// Twice what flows back in that time is kept for what is taken ahead.
const LeaseBurst = 1000 - 2*60

// LeasePerMinute has up to 60 tokens flow back in [LeaseLife], one per second.
var LeasePerMinute = ginlimit.PerMinute(60).WithBurst(1000)

// LeaseBench is a server whose clock, as its clients see it, is that of a bubble.
type LeaseBench struct {
	*Bubble
	Hook *LeaseHook
}

// LeaseHook has commands wait, or fail, and counts them. Before each it sets the server's clock,
// which counts milliseconds.
type LeaseHook struct {
	Wait  atomic.Int64
	Fail  atomic.Bool
	Calls atomic.Int64 // commands or pipelines

	mini *miniredis.Miniredis
}

// call makes a call of a client wait, or fail.
func (h *LeaseHook) call(cmds []redis.Cmder, send func() error) error {
	h.Calls.Add(1)
	time.Sleep(time.Duration(h.Wait.Load()))
	h.mini.SetTime(time.Now().Truncate(time.Millisecond))
	if !h.Fail.Load() {
		return send()
	}
	for _, cmd := range cmds {
		cmd.SetErr(io.ErrUnexpectedEOF)
	}
	return io.ErrUnexpectedEOF
}

// OnLeaseBench runs a test in a bubble with a server whose clock is the bubble's.
func OnLeaseBench(t *testing.T, test func(t *testing.T, b *LeaseBench)) {
	t.Helper()
	InBubble(t, func(t *testing.T, b *Bubble) {
		bench := &LeaseBench{b, &LeaseHook{mini: b.Mini}}
		bench.Advance(0)
		test(t, bench)
	})
}

// RunOnLeaseBench is [OnLeaseBench] of a subtest.
func RunOnLeaseBench(t *testing.T, name string, test func(t *testing.T, b *LeaseBench)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { OnLeaseBench(t, test) })
}

// Advance lets time pass for the process and for Redis.
func (b *LeaseBench) Advance(d time.Duration) {
	time.Sleep(d)
	b.Mini.SetTime(time.Now().Truncate(time.Millisecond))
}

// Client returns one more client, whose commands the hook delays.
func (b *LeaseBench) Client(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true, Dialer: b.Dial})
	rdb.AddHook(Hook(b.Hook.call))
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Limiter returns one more process, with leases.
func (b *LeaseBench) Limiter(t *testing.T, opts ...ginlimit.LimiterOption) *Limiter {
	opts = append([]ginlimit.LimiterOption{ginlimit.WithLease(LeaseLife), RemembersDenials()}, opts...)
	return NewLimiter(t, b.Client(t), opts...)
}

// Sources makes calls for a token, and returns where they were decided, by a letter each.
func Sources(t *testing.T, limiter *Limiter, calls int, limit ginlimit.Limit) (letters string) {
	t.Helper()
	for range calls {
		r, err := limiter.Allow(t.Context(), "k", limit)
		require.NoError(t, err)
		letters += r.Source.String()[:1]
	}
	return letters
}

// Leases uses a policy until it admits from a lease, and returns how many tokens that took.
func (b *LeaseBench) Leases(t *testing.T, p *ginlimit.Policy) (n int) {
	t.Helper()
	for range 400 {
		r, err := p.Allow(t.Context(), "alice")
		require.NoError(t, err)
		if n += r.Granted; r.Source == ginlimit.FromLease {
			return n
		}
		b.Advance(time.Millisecond)
	}
	t.Fatal("there is no lease")
	return n
}

// Busy has a limiter used so much that it takes tokens ahead.
func (b *LeaseBench) Busy(t *testing.T, allow func() (ginlimit.Result, error)) {
	t.Helper()
	for range 400 {
		r, err := allow()
		require.NoError(t, err)
		if r.Source == ginlimit.FromLease {
			return
		}
		b.Advance(time.Millisecond)
	}
	t.Fatal("there is no lease")
}
