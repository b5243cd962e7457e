package testkit

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/memory"
)

// Patient lets Redis take as long as a busy machine may, where that must not be what ends a decision.
func Patient() ginlimit.LimiterOption { return ginlimit.WithTimeout(patience) }

const patience = 10 * time.Second

// Limiter is a limiter that counts any key under any limits, as what a policy does is tested.
//
// A key name|client, as [ginlimit.Key] returns it, is the client of the policy of that name; any
// other key is a client of the policy "test". A policy that [Limiter.Policy] has not made finds its limits in the
// context.
type Limiter struct {
	*ginlimit.Limiter
	algorithm ginlimit.Algorithm // of limits that have none
	mu        sync.Mutex
	policies  map[string]*ginlimit.Policy
}

// Wrap returns a limiter with such methods, which count by an algorithm.
func Wrap(l *ginlimit.Limiter, a ginlimit.Algorithm) *Limiter {
	return &Limiter{Limiter: l, algorithm: a, policies: map[string]*ginlimit.Policy{}}
}

// nameAndClient returns the policy's name and the client that a key is of.
func nameAndClient(key string) (name, client string) {
	if name, client, found := strings.Cut(key, "|"); found && !strings.HasSuffix(name, `\`) {
		return name, client
	}
	return "test", key
}

// limitsKey is of the limits in a context.
type limitsKey struct{}

// LimitsOfContext gives every client the limits in the context.
func LimitsOfContext() ginlimit.PolicyOption { return ginlimit.WithLimitFunc(limitsIn) }

// WithLimits returns a context with limits for [LimitsOfContext].
func WithLimits(ctx context.Context, limits ...ginlimit.Limit) context.Context {
	return context.WithValue(ctx, limitsKey{}, limits)
}

func limitsIn(ctx context.Context, _ string) ([]ginlimit.Limit, error) {
	limits, _ := ctx.Value(limitsKey{}).([]ginlimit.Limit)
	return limits, nil
}

// client returns the policy and the client of a key, and a context with the limits.
func (l *Limiter) client(ctx context.Context, key string, limits []ginlimit.Limit) (
	*ginlimit.Policy, context.Context, string, error) {
	name, client := nameAndClient(key)
	limits = slices.Clone(limits)
	for i := range limits {
		if limits[i].Algorithm == ginlimit.TokenBucket && (limits[i].Calendar == ginlimit.Calendar{}) && limits[i].Rate > 0 {
			limits[i].Algorithm = l.algorithm
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.policies[name], error(nil)
	if p == nil {
		p, err = l.make(name, LimitsOfContext())
	}
	return p, WithLimits(ctx, limits...), client, err
}

// Policy returns a policy, which the limiter's methods use for keys of its name.
func (l *Limiter) Policy(name string, opts ...ginlimit.PolicyOption) (*ginlimit.Policy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.make(name, opts...)
}

// Handler is the handler of such a policy. It panics on a bad configuration.
func (l *Limiter) Handler(name string, opts ...ginlimit.PolicyOption) gin.HandlerFunc {
	return l.Must(name, opts...).Handler()
}

func (l *Limiter) make(name string, opts ...ginlimit.PolicyOption) (*ginlimit.Policy, error) {
	p, err := l.Limiter.Policy(name, opts...)
	if err == nil {
		l.policies[name] = p
	}
	return p, err
}

// Allow takes one token of a key.
func (l *Limiter) Allow(ctx context.Context, key string, limits ...ginlimit.Limit) (ginlimit.Result, error) {
	return l.AllowN(ctx, key, 1, limits...)
}

// AllowN takes n tokens of a key, or none.
func (l *Limiter) AllowN(ctx context.Context, key string, n int, limits ...ginlimit.Limit) (ginlimit.Result, error) {
	p, ctx, client, err := l.client(ctx, key, limits)
	if err != nil {
		return ginlimit.Result{}, err
	}
	return p.AllowN(ctx, client, n)
}

// AllowUpTo takes up to n tokens of a key.
func (l *Limiter) AllowUpTo(ctx context.Context, key string, n int, limits ...ginlimit.Limit) (ginlimit.Result, error) {
	p, ctx, client, err := l.client(ctx, key, limits)
	if err != nil {
		return ginlimit.Result{}, err
	}
	return p.AllowUpTo(ctx, client, n)
}

// Wait takes one token of a key as soon as there is one.
func (l *Limiter) Wait(ctx context.Context, key string, limits ...ginlimit.Limit) error {
	return l.WaitN(ctx, key, 1, limits...)
}

// WaitN takes n tokens of a key as soon as they are available.
func (l *Limiter) WaitN(ctx context.Context, key string, n int, limits ...ginlimit.Limit) error {
	p, ctx, client, err := l.client(ctx, key, limits)
	if err != nil {
		return err
	}
	return p.WaitN(ctx, client, n)
}

// Peek returns what one token of a key would meet.
func (l *Limiter) Peek(ctx context.Context, key string, limits ...ginlimit.Limit) (ginlimit.Result, error) {
	p, ctx, client, err := l.client(ctx, key, limits)
	if err != nil {
		return ginlimit.Result{}, err
	}
	return p.Peek(ctx, client)
}

// Status returns the status of each limit of a key.
func (l *Limiter) Status(ctx context.Context, key string, limits ...ginlimit.Limit) ([]ginlimit.Result, error) {
	p, ctx, client, err := l.client(ctx, key, limits)
	if err != nil {
		return nil, err
	}
	return p.Status(ctx, client)
}

// Refund gives n tokens back to a key.
func (l *Limiter) Refund(ctx context.Context, key string, n int, limits ...ginlimit.Limit) error {
	p, ctx, client, err := l.client(ctx, key, limits)
	if err != nil {
		return err
	}
	return p.Refund(ctx, client, n)
}

// Block denies a key every token for d.
func (l *Limiter) Block(ctx context.Context, key string, d time.Duration, limits ...ginlimit.Limit) error {
	p, ctx, client, err := l.client(ctx, key, limits)
	if err != nil {
		return err
	}
	return p.Block(ctx, client, d)
}

// Reset fills a key's buckets up.
func (l *Limiter) Reset(ctx context.Context, key string, limits ...ginlimit.Limit) error {
	p, ctx, client, err := l.client(ctx, key, limits)
	if err != nil {
		return err
	}
	return p.Reset(ctx, client)
}

// Reserve takes n tokens of a key, or none, to be settled later.
func (l *Limiter) Reserve(ctx context.Context, key string, n int, limits ...ginlimit.Limit) (
	*ginlimit.Reservation, error) {
	p, ctx, client, err := l.client(ctx, key, limits)
	if err != nil {
		return nil, err
	}
	return p.Reserve(ctx, client, n)
}

// forTests is an option that only [NewLimiter] and its kin understand.
type forTests struct {
	ginlimit.Option
	algorithm ginlimit.Algorithm
}

// RemembersDenials has a limiter of [NewLimiter] remember denials, as others do.
func RemembersDenials() ginlimit.LimiterOption { return ginlimit.WithDenyCache(65_536) }

// WithAlgorithm has a [Limiter] count by an algorithm.
func WithAlgorithm(a ginlimit.Algorithm) ginlimit.Option {
	return forTests{Option: ginlimit.WithFloor(0), algorithm: a}
}

// made returns a limiter as the options for tests say.
func made(t testing.TB, l *ginlimit.Limiter, err error, opts []ginlimit.LimiterOption) *Limiter {
	t.Helper()
	require.NoError(t, err)
	limiter := Wrap(l, ginlimit.TokenBucket)
	for _, opt := range opts {
		if o, ok := opt.(forTests); ok {
			limiter.algorithm = o.algorithm
		}
	}
	return limiter
}

// engineOf returns the engine of a limiter, which no method returns.
func engineOf(l *ginlimit.Limiter) *engine.Engine {
	field := reflect.ValueOf(l).Elem().FieldByName("engine")
	return *(**engine.Engine)(unsafe.Pointer(field.UnsafeAddr()))
}

// SetLocalBuckets bounds how many buckets a limiter keeps in the process while Redis does not
// decide. The limiter has made no decision yet.
func SetLocalBuckets(l *ginlimit.Limiter, n int) {
	field := reflect.ValueOf(engineOf(l)).Elem().FieldByName("local")
	*(**memory.Store)(unsafe.Pointer(field.UnsafeAddr())) = memory.New(n)
}

// NewLimiter returns a limiter that has the patience of a busy machine, and no decision that Redis
// has not made: it remembers no denials. It sends Redis no commands but the test's: it is not [NewOperated].
func NewLimiter(t testing.TB, rdb redis.UniversalClient, opts ...ginlimit.LimiterOption) *Limiter {
	t.Helper()
	l := NewOperated(t, rdb, opts...)
	field := reflect.ValueOf(l.Limiter).Elem().FieldByName("leave")
	(*(*func())(unsafe.Pointer(field.UnsafeAddr())))()
	return l
}

// NewOperated is [NewLimiter], and reads overrides and publishes its policies in the background, as others do.
func NewOperated(t testing.TB, rdb redis.UniversalClient, opts ...ginlimit.LimiterOption) *Limiter {
	t.Helper()
	limiter, err := ginlimit.NewLimiter(rdb, append([]ginlimit.LimiterOption{
		Patient(), ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithLogger(slog.New(slog.DiscardHandler)),
		ginlimit.WithReplicas(1), // else it counts processes
		ginlimit.WithDenyCache(0),
	}, opts...)...)
	l := made(t, limiter, err, opts)
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	return l
}

// LoggedLimiter is [NewLimiter], and returns the limiter's log.
func LoggedLimiter(t testing.TB, rdb redis.UniversalClient, opts ...ginlimit.LimiterOption) (*Limiter, *Buffer) {
	t.Helper()
	var log Buffer
	return NewLimiter(t, rdb, append(opts, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...), &log
}

// UntilLogged makes decisions until the log has a word.
func UntilLogged(t testing.TB, limiter *Limiter, log *Buffer, word string) {
	t.Helper()
	require.True(t, BecomesTrue(t.Context().Done(), func() bool {
		_, _ = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1000))
		return strings.Contains(log.String(), word)
	}))
}

// RedisKey is the key of a token bucket, as the documentation names it: prefix:{key}:period.
func RedisKey(key string, l ginlimit.Limit) string {
	_, period, _ := strings.Cut(ginlimit.Limit{Rate: 1, Period: l.Period}.String(), "/")
	name, client := nameAndClient(key)
	return "ginlimit:{" + ginlimit.Key(name, "") + client + "}:" + period
}

// RedisKeyOf is [RedisKey] of what an algorithm counts.
func RedisKeyOf(a ginlimit.Algorithm, key string, l ginlimit.Limit) string {
	if a == ginlimit.TokenBucket {
		return RedisKey(key, l)
	}
	kind, _, _ := strings.Cut(a.String(), "-")
	return RedisKey(key, l) + ":" + kind
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
func LimitsFrom(limits ...ginlimit.Limit) ginlimit.PolicyOption {
	return ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return limits, nil })
}

// NewLocal returns a limiter that decides in the process.
func NewLocal(t testing.TB, opts ...ginlimit.LimiterOption) *Limiter {
	t.Helper()
	limiter, err := ginlimit.NewLocal(opts...)
	l := made(t, limiter, err, opts)
	t.Cleanup(func() { _ = limiter.Close() })
	return l
}

// NewPolicy returns a policy of a limiter.
func NewPolicy(t testing.TB, l *Limiter, name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
	t.Helper()
	p, err := l.Policy(name, opts...)
	require.NoError(t, err)
	return p
}

// Derive returns [ginlimit.Policy.With] of a policy.
func Derive(t testing.TB, p *ginlimit.Policy, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
	t.Helper()
	derived, err := p.With(opts...)
	require.NoError(t, err)
	return derived
}

// Reserve takes a token of the client "alice", and a slot if the policy has any.
func Reserve(t testing.TB, p *ginlimit.Policy) *ginlimit.Reservation {
	t.Helper()
	slot, err := p.Reserve(t.Context(), "alice", 1)
	require.NoError(t, err)
	return Keep(t, slot)
}

// Keep returns what is not collected before the test ends: a reservation that nobody has frees its slots.
func Keep[T any](t testing.TB, v T) T {
	t.Cleanup(func() { runtime.KeepAlive(v) })
	return v
}

// Must returns a policy of the limiter. It panics on a bad configuration.
func (l *Limiter) Must(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
	p, err := l.Policy(name, opts...)
	if err != nil {
		panic(err)
	}
	return p
}

// Key is [ginlimit.WithKey] of a header.
func Key(header string) ginlimit.Option { return ginlimit.WithKey(ginlimit.ByHeader(header)) }

// All is [ginlimit.WithKey] of one key for everybody.
func All() ginlimit.Option { return ginlimit.WithKey(Everybody) }
