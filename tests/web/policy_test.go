package web_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestPolicyMethodsAreForTheBucketsOfItsHandler, whatever they are counted by.
func TestPolicyMethodsAreForTheBucketsOfItsHandler(t *testing.T) {
	t.Parallel()
	ten := ginlimit.PerDay(10)
	for engine, make := range map[string]func(*testing.T, ...ginlimit.LimiterOption) *testkit.Limiter{
		"miniredis": func(t *testing.T, opts ...ginlimit.LimiterOption) *testkit.Limiter {
			rdb, _ := testkit.NewMiniredis(t)
			return testkit.NewLimiter(t, rdb, opts...)
		},
		"in the process": func(t *testing.T, opts ...ginlimit.LimiterOption) *testkit.Limiter {
			return testkit.NewLocal(t, opts...)
		},
	} {
		for name, row := range map[string]struct {
			limiter []ginlimit.LimiterOption
			name    string
			policy  []ginlimit.PolicyOption
		}{
			"token bucket":   {nil, "test", []ginlimit.PolicyOption{ten}},
			"fixed window":   {nil, "fw", []ginlimit.PolicyOption{ten.WithAlgorithm(ginlimit.FixedWindow)}},
			"sliding window": {nil, "test", []ginlimit.PolicyOption{ten.WithAlgorithm(ginlimit.SlidingWindow)}},
			"several limits": {nil, "test",
				[]ginlimit.PolicyOption{ten, ginlimit.PerHour(100), ginlimit.Per(11, 30*24*time.Hour)}},
			"different algorithms": {nil, "test",
				[]ginlimit.PolicyOption{ten, ginlimit.PerHour(100).WithAlgorithm(ginlimit.SlidingWindow)}},
			"with a secret": {[]ginlimit.LimiterOption{ginlimit.WithKeySecret([]byte("sixteen bytes..."))}, "n",
				[]ginlimit.PolicyOption{ten}},
			"a limit per client": {nil, "test", []ginlimit.PolicyOption{testkit.LimitsFrom(ten)}},
		} {
			if engine == "in the process" && name == "with a secret" {
				continue // it has none
			}
			testkit.Run(t, engine+", "+name, func(t *testing.T) {
				ctx := t.Context()
				p := testkit.NewPolicy(t, make(t, row.limiter...), row.name, append(row.policy, testkit.ByUser())...)
				r := testkit.Serve(p.Handler())
				const client = "b|c" // as the KeyFunc returns it
				left := func(want int) {
					t.Helper()
					res := testkit.Must(p.Peek(ctx, client))
					require.Equal(t, want, res.Remaining)
					require.Zero(t, res.Granted)
					require.Equal(t, ten, res.Limit.WithAlgorithm(ginlimit.TokenBucket))
				}
				request := func(remains int) { // fewer than none: it is denied
					t.Helper()
					rec := testkit.Get(r, "/", testkit.User(client))
					if remains < 0 {
						require.Equal(t, http.StatusTooManyRequests, rec.Code)
						return
					}
					require.Equal(t, http.StatusOK, rec.Code)
					require.Equal(t, fmt.Sprint(remains), testkit.Remaining(rec))
				}
				left(10)
				request(9)
				left(9)
				res := testkit.Must(p.Allow(ctx, client))
				require.True(t, res.Allowed)
				require.Equal(t, 1, res.Granted)
				require.Equal(t, 8, res.Remaining)
				res = testkit.Must(p.AllowN(ctx, client, 9))
				require.False(t, res.Allowed)
				require.Positive(t, res.RetryAfter)
				res = testkit.Must(p.AllowN(ctx, client, 3))
				require.True(t, res.Allowed)
				request(4)
				require.NoError(t, p.Wait(ctx, client))
				request(2)
				require.NoError(t, p.WaitN(ctx, client, 2))
				left(0)
				request(-1)
				res = testkit.Must(p.AllowUpTo(ctx, client, 100))
				require.False(t, res.Allowed)
				require.NoError(t, p.Refund(ctx, client, 3))
				request(2)
				res = testkit.Must(p.AllowUpTo(ctx, client, 100))
				require.Equal(t, 2, res.Granted)
				request(-1)
				require.NoError(t, p.Reset(ctx, client))
				request(9)

				require.NoError(t, p.Block(ctx, client, time.Hour))
				rec := testkit.Get(r, "/", testkit.User(client))
				require.Equal(t, http.StatusTooManyRequests, rec.Code)
				require.Contains(t, []string{"3600", "3599"}, rec.Header().Get("Retry-After"))
				require.Equal(t, http.StatusOK, testkit.Get(r, "/", testkit.User("another")).Code)
				near, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				require.ErrorIs(t, p.Wait(near, client), context.DeadlineExceeded, "at once")
				require.NoError(t, p.Reset(ctx, client))
				request(9)
				require.ErrorIs(t, p.WaitN(ctx, client, 11), ginlimit.ErrInvalidArgument, "it never holds so many")
			})
		}
	}
}

func TestPolicyMethodsRefuseWhatCannotBe(t *testing.T) {
	t.Parallel()
	fail := errors.New("no such client")
	limiter := testkit.NewLocal(t)
	p := testkit.NewPolicy(t, limiter, "plan",
		ginlimit.WithLimitFunc(func(_ context.Context, client string) ([]ginlimit.Limit, error) {
			switch client {
			case "unknown":
				return nil, fail
			case "none":
				return nil, nil
			case "invalid":
				return []ginlimit.Limit{ginlimit.PerDay(1), {}}, nil
			case "unlimited":
				return []ginlimit.Limit{ginlimit.PerDay(-1)}, nil
			}
			return []ginlimit.Limit{ginlimit.PerDay(10)}, nil
		}))
	ctx, n := t.Context(), 1
	methods := methodsOf(p, &ctx, &n)
	for name, method := range methods {
		n = 1
		require.NoError(t, p.Reset(ctx, "k")) // a block leaves one token
		require.NoError(t, method("k"), name)
		require.ErrorIs(t, method(""), ginlimit.ErrNoKey, name)
		require.ErrorIs(t, method("unknown"), fail, name)
		require.ErrorIs(t, method("none"), ginlimit.ErrInvalidArgument, name)
		require.ErrorIs(t, method("invalid"), ginlimit.ErrInvalidArgument, name)
		if name == "Block" {
			require.ErrorIs(t, method("unlimited"), ginlimit.ErrInvalidArgument)
		} else {
			require.NoError(t, method("unlimited"), name)
		}
		n = 0
		if strings.HasSuffix(name, "N") || slices.Contains([]string{"AllowUpTo", "Refund", "Block"}, name) {
			require.ErrorIs(t, method("k"), ginlimit.ErrInvalidArgument, name)
		}
		if strings.HasSuffix(name, "N") {
			require.ErrorIs(t, method(""), ginlimit.ErrInvalidArgument, name)
			require.ErrorIs(t, method(""), ginlimit.ErrNoKey, "%s: both faults", name)
		}
	}
	n = 1
	var cancel context.CancelFunc
	ctx, cancel = context.WithCancel(ctx)
	cancel()
	for name, method := range methods {
		require.ErrorIs(t, method("k"), context.Canceled, name)
	}
	ctx = t.Context()
	require.NoError(t, limiter.Close())
	for name, method := range methods {
		require.ErrorIs(t, method("k"), ginlimit.ErrUnavailable, name)
	}
}

// methodsOf are all methods of a policy, with a context, a client and a number.
func methodsOf(p *ginlimit.Policy, ctx *context.Context, n *int) map[string]func(client string) error {
	return map[string]func(client string) error{
		"Allow":     func(c string) error { _, err := p.Allow(*ctx, c); return err },
		"AllowN":    func(c string) error { _, err := p.AllowN(*ctx, c, *n); return err },
		"AllowUpTo": func(c string) error { _, err := p.AllowUpTo(*ctx, c, *n); return err },
		"Wait":      func(c string) error { return p.Wait(*ctx, c) },
		"WaitN":     func(c string) error { return p.WaitN(*ctx, c, *n) },
		"Peek":      func(c string) error { _, err := p.Peek(*ctx, c); return err },
		"Status":    func(c string) error { _, err := p.Status(*ctx, c); return err },
		"Refund":    func(c string) error { return p.Refund(*ctx, c, *n) },
		"Block":     func(c string) error { return p.Block(*ctx, c, time.Duration(*n)) },
		"Reset":     func(c string) error { return p.Reset(*ctx, c) },
	}
}

func TestZeroPolicyMakesNoDecision(t *testing.T) {
	t.Parallel()
	ctx, n := t.Context(), 1
	for _, p := range []*ginlimit.Policy{nil, {}} {
		for name, method := range methodsOf(p, &ctx, &n) {
			require.ErrorIs(t, method("k"), ginlimit.ErrInvalidArgument, name)
		}
		require.Contains(t, testkit.PanicText(t, func() { p.Handler() }), "not made by Limiter.Policy")
	}
}

// The options of a handler.

func TestRefund(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		rdb := b.Redis
		failed := func(c *gin.Context) bool { return c.Writer.Status() >= 400 }
		r := gin.New()
		_ = r.SetTrustedProxies(nil)
		r.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }),
			testkit.NewLimiter(t, rdb).Handler("test", ginlimit.PerHour(5), ginlimit.PerDay(10), ginlimit.WithRefund(failed),
				ginlimit.WithCost(func(c *gin.Context) int { return 2 })))
		r.GET("/failed", func(c *gin.Context) { c.Status(400) })
		r.GET("/panics", func(c *gin.Context) { panic("fault") })
		r.GET("/panics-late", func(c *gin.Context) { c.String(200, "begun"); panic("fault") })
		for range 3 {
			assert.Equal(t, "3", testkit.Remaining(testkit.Get(r, "/failed")), "given back each time, and never above full")
			assert.Equal(t, "3", testkit.Remaining(testkit.Get(r, "/panics")))
		}
		assert.Zero(t, rdb.DBSize(t.Context()).Val(), "full buckets")
		assert.Equal(t, "3", testkit.Remaining(testkit.Get(r, "/panics-late")), "its answer had begun with 200: it counts")
		assert.Equal(t, "1", testkit.Remaining(testkit.Get(r, "/panics-late")))
		for range 2 {
			assert.Equal(t, 429, testkit.Get(r, "/failed").Code, "what took nothing gives nothing back")
		}
	})
}

func TestListsAndSkip(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	prefix := netip.MustParsePrefix
	r := testkit.Serve(func(c *gin.Context) {
		c.Next()
		if result, ok := ginlimit.FromContext(c); ok {
			c.Writer.Header().Set("Source", result.Source.String())
		}
	}, testkit.Middleware(rdb, ginlimit.PerMinute(1), ginlimit.WithReplicas(1),
		ginlimit.WithAllowList(prefix("192.0.2.128/25"), prefix("2001:db8::/48"), prefix("::ffff:198.51.100.0/120")),
		ginlimit.WithDenyList(prefix("192.0.2.0/24"), prefix("2001:db8::/32"), prefix("64:ff9b::203.0.113.0/120")),
		ginlimit.WithSkip(func(c *gin.Context) bool { return c.Query("health") != "" })))
	for _, c := range []struct {
		address, path string
		codes         []int
	}{
		{"192.0.2.1:1", "/", []int{403, 403}},
		{"[::ffff:192.0.2.1]:1", "/", []int{403}},
		{"192.0.2.129:1", "/", []int{200, 200}}, // in both: allowed
		{"[2001:db8::1]:1", "/", []int{200, 200}},
		{"[2001:db8:1::1]:1", "/", []int{403}},
		{"198.51.100.7:1", "/", []int{200, 200}},
		{"[64:ff9b::198.51.100.7]:1", "/", []int{200, 200}},
		{"203.0.113.9:1", "/", []int{403}},
		{"203.0.112.9:1", "/", []int{200, 429}},
		{"203.0.112.9:1", "/?health=1", []int{200, 200}},
		{"192.0.2.1:1", "/?health=1", []int{403}},
		{"@", "/?health=1", []int{500}}, // who cannot be looked up is not let in
	} {
		for _, code := range c.codes {
			rec := testkit.Get(r, c.path, testkit.From(c.address))
			assert.Equal(t, code, rec.Code, "%s %s", c.address, c.path)
			assert.Equal(t, code == 429 || c.address == "203.0.112.9:1" && c.path == "/", testkit.Remaining(rec) != "")
			if code == 403 {
				assert.JSONEq(t, `{"type": "about:blank", "title": "Forbidden", "status": 403}`, rec.Body.String())
			}
		}
	}
	rec := testkit.Get(r, "/", testkit.From("192.0.2.1:1"))
	assert.Equal(t, "no-store", rec.Header().Get("Cache-Control"))
	require.ElementsMatch(t, []string{"ginlimit:{1/m|203.0.112.9}:m"}, rdb.Keys(t.Context(), "*").Val())
}

func TestHeaderFunc(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	set := func(h http.Header, limits []ginlimit.Result) { h.Set("X-Left", strconv.Itoa(limits[0].Remaining)) }
	r := testkit.Serve(testkit.Middleware(rdb, ginlimit.PerMinute(2), ginlimit.WithHeaderFunc(set)),
		testkit.Middleware(rdb, ginlimit.PerMinute(9), ginlimit.WithHeaderFunc(set)),
		// further from exhaustion: not told in a field of that name
		testkit.Middleware(rdb, ginlimit.PerHour(1), ginlimit.WithHeaderFunc(set), ginlimit.WithDryRun()))
	for _, want := range []string{"1", "0", "0"} {
		assert.Equal(t, want, testkit.Get(r, "/").Header().Get("X-Left"))
	}
}
