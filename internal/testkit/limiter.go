package testkit

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// Patient lets Redis take as long as a busy machine may, where that must not be what ends a decision.
func Patient() ginlimit.Option { return ginlimit.WithTimeout(10 * time.Second) }

// TrustsClock has a limiter remember refusals from the first one on.
func TrustsClock() ginlimit.Option { return ginlimit.WithDenyMemory(ginlimit.DefaultDenyMemory) }

// NewLimiter returns a limiter that has the patience of a busy machine, and no decision that Redis has not made.
func NewLimiter(t testing.TB, rdb redis.UniversalClient, opts ...ginlimit.Option) *ginlimit.Limiter {
	t.Helper()
	limiter, err := ginlimit.NewLimiter(rdb, append([]ginlimit.Option{
		Patient(), ginlimit.WithFailure(ginlimit.FailClosed), ginlimit.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	return limiter
}

// LoggedLimiter is [NewLimiter], and returns the limiter's log.
func LoggedLimiter(t testing.TB, rdb redis.UniversalClient, opts ...ginlimit.Option) (*ginlimit.Limiter, *Buffer) {
	t.Helper()
	var log Buffer
	return NewLimiter(t, rdb, append(opts, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...), &log
}

// UntilLogged makes decisions until the log has a word.
func UntilLogged(t testing.TB, limiter *ginlimit.Limiter, log *Buffer, word string) {
	t.Helper()
	require.True(t, BecomesTrue(t.Context().Done(), func() bool {
		_, _ = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		return strings.Contains(log.String(), word)
	}))
}

// RedisKey is the key of a token bucket, as the documentation names it: prefix:{key}:period.
func RedisKey(key string, l ginlimit.Limit) string {
	_, period, _ := strings.Cut(ginlimit.Limit{Rate: 1, Period: l.Period}.String(), "/")
	return "ginlimit:{" + key + "}:" + period
}

// RedisKeyOf is [RedisKey] of what an algorithm counts.
func RedisKeyOf(a ginlimit.Algorithm, key string, l ginlimit.Limit) string {
	ends := map[ginlimit.Algorithm]string{ginlimit.FixedWindow: ":fixed", ginlimit.SlidingWindow: ":sliding"}
	return RedisKey(key, l) + ends[a]
}

// Buffer is a buffer that many write to.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer].
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns what was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// GoroutinesLeft counts the goroutines of limiters that this test has started.
func GoroutinesLeft(t testing.TB) int {
	var profile bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
	left := 0
	for _, stack := range strings.Split(profile.String(), "\n\n") {
		if strings.Contains(stack, fmt.Sprintf("%q:%q", "test", t.Name())) &&
			!strings.Contains(stack, "/internal/testkit.") &&
			(strings.Contains(stack, "ginlimit.(*") || strings.Contains(stack, "ginlimit/internal/")) {
			left++
		}
	}
	return left
}

// LimitsFrom gives every client the same limits.
func LimitsFrom(limits ...ginlimit.Limit) ginlimit.Option {
	return ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return limits, nil })
}

// NewLocal returns a limiter that decides in the process.
func NewLocal(t testing.TB, opts ...ginlimit.Option) *ginlimit.Limiter {
	t.Helper()
	l, err := ginlimit.NewLocal(opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// NewPolicy returns a policy of a limiter.
func NewPolicy(t testing.TB, l *ginlimit.Limiter, limit ginlimit.Limit, opts ...ginlimit.Option) *ginlimit.Policy {
	t.Helper()
	p, err := l.Policy(limit, opts...)
	require.NoError(t, err)
	return p
}

// Acquire takes a slot of the client "alice".
func Acquire(t testing.TB, p *ginlimit.Policy) *ginlimit.Slot {
	t.Helper()
	slot, err := p.Acquire(t.Context(), "alice")
	require.NoError(t, err)
	return slot
}
