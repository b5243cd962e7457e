package limits_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestSourceNames(t *testing.T) {
	t.Parallel()
	for source, want := range map[ginlimit.Source]string{ginlimit.FromRedis: "redis", ginlimit.FromMemory: "memory",
		ginlimit.FromLocal: "local", ginlimit.FromPolicy: "policy", 200: "unknown"} {
		assert.Equal(t, want, source.String())
	}
}

// TestResultIsNamed: by the policy or the identity whose limit it is of.
func TestResultIsNamed(t *testing.T) {
	t.Parallel()
	never := func(*gin.Context) bool { return true }
	for name, row := range map[string]struct {
		limit ginlimit.Limit
		opts  []ginlimit.Option
		want  []string // of each request
	}{
		"a policy": {ginlimit.PerDay(1), []ginlimit.Option{ginlimit.WithName("login")},
			[]string{"login", "login", "login"}},
		"without a name": {ginlimit.PerDay(1), nil, []string{"1/d by key", "1/d by key"}},
		"several limits": {ginlimit.PerDay(3),
			[]ginlimit.Option{ginlimit.WithLimits(ginlimit.PerHour(1))}, []string{"1/h, 3/d by key", "1/h, 3/d by key"}},
		"limits of the client": {ginlimit.PerDay(3),
			[]ginlimit.Option{ginlimit.WithName("plan"), testkit.LimitsFrom(ginlimit.PerDay(1))}, []string{"plan", "plan"}},
		"prohibited": {ginlimit.PerDay(0), []ginlimit.Option{ginlimit.WithName("closed")}, []string{"closed"}},
		"unlimited":  {ginlimit.PerDay(-1), []ginlimit.Option{ginlimit.WithName("open")}, []string{"open"}},
		"skipped": {ginlimit.PerDay(1),
			[]ginlimit.Option{ginlimit.WithName("skipped"), ginlimit.WithSkip(never)}, []string{"skipped"}},
		"an address that is denied": {ginlimit.PerDay(1),
			[]ginlimit.Option{ginlimit.WithName("listed"),
				ginlimit.WithDenyList(netip.MustParsePrefix("0.0.0.0/0"))}, []string{"listed"}},
		"dry run": {ginlimit.PerDay(1),
			[]ginlimit.Option{ginlimit.WithName("dry"), ginlimit.WithDryRun()}, []string{"dry", "dry"}},
		"an identity that is closer": {ginlimit.PerDay(3),
			[]ginlimit.Option{ginlimit.WithName("own"), ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerDay(2))},
			[]string{"all", "all", "all"}},
		"an identity that is not": {ginlimit.PerDay(2),
			[]ginlimit.Option{ginlimit.WithName("own"), ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerDay(3))},
			[]string{"own", "own", "own"}},
		"an identity that prohibits": {ginlimit.PerDay(2),
			[]ginlimit.Option{ginlimit.WithName("own"), ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerDay(0))},
			[]string{"all"}},
		"the second limit of an identity": {ginlimit.PerDay(5), []ginlimit.Option{ginlimit.WithName("own"),
			ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerDay(9), ginlimit.PerHour(2)),
			ginlimit.WithIdentity("more", testkit.Everybody, ginlimit.PerDay(9))},
			[]string{"all", "all", "all"}},
	} {
		for engine, make := range map[string]func(*testing.T) *ginlimit.Limiter{
			"miniredis": func(t *testing.T) *ginlimit.Limiter {
				rdb, _ := testkit.NewMiniredis(t)
				return testkit.NewLimiter(t, rdb)
			},
			"remembering refusals": func(t *testing.T) *ginlimit.Limiter {
				rdb, _ := testkit.NewMiniredis(t)
				return testkit.NewLimiter(t, rdb, testkit.TrustsClock())
			},
			"in the process": func(t *testing.T) *ginlimit.Limiter { return testkit.NewLocal(t) },
			"without Redis":  func(t *testing.T) *ginlimit.Limiter { return testkit.WithoutRedis(t) },
			"without Redis, shared": func(t *testing.T) *ginlimit.Limiter {
				return testkit.WithoutRedis(t, ginlimit.WithReplicas(1_000_000))
			},
		} {
			if engine == "without Redis, shared" && strings.Contains(name, "an identity") {
				continue // of equal shares, none is closer
			}
			t.Run(name+", "+engine, func(t *testing.T) {
				t.Parallel()
				var found, denied ginlimit.Result
				p := testkit.NewPolicy(t, make(t), row.limit, append([]ginlimit.Option{testkit.ByUser(),
					ginlimit.WithDeniedHandler(func(_ *gin.Context, r ginlimit.Result) { denied = r })}, row.opts...)...)
				r := testkit.Serve(func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }, p.Handler())
				for i, want := range row.want {
					rec := testkit.Get(r, "/", testkit.User("u"))
					require.Equal(t, want, found.Name, "request %d", i)
					if rec.Code == http.StatusTooManyRequests {
						require.Equal(t, want, denied.Name)
					}
				}
			})
		}
	}
	t.Run("methods", func(t *testing.T) {
		t.Parallel()
		limiter := testkit.NewLocal(t, ginlimit.WithName("default"))
		p := testkit.NewPolicy(t, limiter, ginlimit.PerDay(3), ginlimit.WithName("named"),
			ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerDay(1)))
		for i := range 5 {
			r, err := limiter.Allow(t.Context(), "k", ginlimit.PerDay(3))
			require.NoError(t, err)
			require.Empty(t, r.Name)
			for _, method := range []func() (ginlimit.Result, error){
				func() (ginlimit.Result, error) { return p.Allow(t.Context(), "k") },
				func() (ginlimit.Result, error) { return p.Peek(t.Context(), "k") },
				func() (ginlimit.Result, error) { return p.AllowUpTo(t.Context(), "k", 1) },
			} {
				r, err := method()
				require.NoError(t, err)
				require.Equal(t, "named", r.Name, i)
			}
		}
		for _, limit := range []ginlimit.Limit{ginlimit.PerDay(0), ginlimit.PerDay(-1)} {
			r, err := limiter.Peek(t.Context(), "k", limit)
			require.NoError(t, err)
			require.Empty(t, r.Name)
		}
		r, err := testkit.NewPolicy(t, limiter, ginlimit.PerDay(3)).Peek(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "default", r.Name)
		r, err = p.Allow(t.Context(), "")
		require.Error(t, err)
		require.Zero(t, r)
	})
}
