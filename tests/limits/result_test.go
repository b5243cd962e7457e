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
	for source, want := range map[ginlimit.Source]string{ginlimit.FromRedis: "redis", ginlimit.FromCache: "cache",
		ginlimit.FromLease: "lease", ginlimit.FromLocal: "local", ginlimit.FromOpen: "open", ginlimit.FromPolicy: "policy",
		200: "unknown"} {
		assert.Equal(t, want, source.String())
	}
}

// TestResultIsNamed: by the policy or the identity whose limit it is of.
func TestResultIsNamed(t *testing.T) {
	t.Parallel()
	never := func(*gin.Context) bool { return true }
	for name, row := range map[string]struct {
		name string
		opts []ginlimit.PolicyOption
		want []string // of each request
	}{
		"a policy": {"login", []ginlimit.PolicyOption{ginlimit.PerDay(1)}, []string{"login", "login", "login"}},
		"several limits": {"api", []ginlimit.PolicyOption{ginlimit.PerDay(3), ginlimit.PerHour(1)},
			[]string{"api", "api"}},
		"limits of the client": {"plan", []ginlimit.PolicyOption{testkit.LimitsFrom(ginlimit.PerDay(1))},
			[]string{"plan", "plan"}},
		"prohibited": {"closed", []ginlimit.PolicyOption{ginlimit.PerDay(0)}, []string{"closed"}},
		"unlimited":  {"open", []ginlimit.PolicyOption{ginlimit.Unlimited()}, []string{"open"}},
		"skipped": {"skipped", []ginlimit.PolicyOption{ginlimit.PerDay(1), ginlimit.WithSkip(never)},
			[]string{"skipped"}},
		"an address that is denied": {"listed", []ginlimit.PolicyOption{ginlimit.PerDay(1),
			ginlimit.WithDenyList(netip.MustParsePrefix("0.0.0.0/0"))}, []string{"listed"}},
		"dry run": {"dry", []ginlimit.PolicyOption{ginlimit.PerDay(1), ginlimit.WithDryRun()},
			[]string{"dry", "dry"}},
		"an identity that is closer": {"own", []ginlimit.PolicyOption{ginlimit.PerDay(3),
			ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerDay(2))},
			[]string{"all", "all", "all"}},
		"an identity that is not": {"own", []ginlimit.PolicyOption{ginlimit.PerDay(2),
			ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerDay(3))},
			[]string{"own", "own", "own"}},
		"an identity that prohibits": {"own", []ginlimit.PolicyOption{ginlimit.PerDay(2),
			ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerDay(0))},
			[]string{"all"}},
		"the second limit of an identity": {"own", []ginlimit.PolicyOption{ginlimit.PerDay(5),
			ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerDay(9), ginlimit.PerHour(2)),
			ginlimit.WithIdentity("more", testkit.Everybody, ginlimit.PerDay(9))},
			[]string{"all", "all", "all"}},
	} {
		for engine, make := range map[string]func(*testing.T) *testkit.Limiter{
			"miniredis": func(t *testing.T) *testkit.Limiter {
				rdb, _ := testkit.NewMiniredis(t)
				return testkit.NewLimiter(t, rdb)
			},
			"remembering denials": func(t *testing.T) *testkit.Limiter {
				rdb, _ := testkit.NewMiniredis(t)
				return testkit.NewLimiter(t, rdb, testkit.TrustsClock())
			},
			"in the process": func(t *testing.T) *testkit.Limiter { return testkit.NewLocal(t) },
			"without Redis":  func(t *testing.T) *testkit.Limiter { return testkit.WithoutRedis(t) },
			"without Redis, shared": func(t *testing.T) *testkit.Limiter {
				return testkit.WithoutRedis(t, ginlimit.WithReplicas(1_000_000))
			},
		} {
			if engine == "without Redis, shared" && strings.Contains(name, "an identity") {
				continue // of equal shares, none is closer
			}
			t.Run(name+", "+engine, func(t *testing.T) {
				t.Parallel()
				var found, denied ginlimit.Result
				p := testkit.NewPolicy(t, make(t), row.name, append([]ginlimit.PolicyOption{testkit.ByUser(),
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
		limiter := testkit.NewLocal(t)
		p := testkit.NewPolicy(t, limiter, "named", ginlimit.PerDay(3),
			ginlimit.WithIdentity("all", testkit.Everybody, ginlimit.PerDay(1)))
		for i := range 5 {
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
			r, err := testkit.NewPolicy(t, limiter, "static", limit).Peek(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, "static", r.Name)
		}
		r, err := p.Allow(t.Context(), "")
		require.Error(t, err)
		require.Zero(t, r)
	})
}
