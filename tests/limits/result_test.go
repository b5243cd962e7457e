package limits_test

import (
	"net/http"
	"net/netip"
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

// TestResultIsNamed: by the policy whose limit it is of.
func TestResultIsNamed(t *testing.T) {
	t.Parallel()
	type options = []ginlimit.PolicyOption
	never := func(*gin.Context) bool { return true }
	for name, row := range map[string]struct {
		name string
		opts options
		all  options  // of another policy, for everybody; without any there is none
		want []string // of each request
	}{
		"a policy": {"login", options{ginlimit.PerDay(1)}, nil, []string{"login", "login", "login"}},
		"several limits": {"api", options{ginlimit.PerDay(3), ginlimit.PerHour(1)}, nil,
			[]string{"api", "api"}},
		"limits of the client": {"plan", options{testkit.LimitsFrom(ginlimit.PerDay(1))}, nil,
			[]string{"plan", "plan"}},
		"prohibited": {"closed", options{ginlimit.PerDay(0)}, nil, []string{"closed"}},
		"unlimited":  {"open", options{ginlimit.Unlimited()}, nil, []string{"open"}},
		"skipped": {"skipped", options{ginlimit.PerDay(1), ginlimit.WithSkip(never)}, nil,
			[]string{"skipped"}},
		"an address that is denied": {"listed", options{ginlimit.PerDay(1),
			ginlimit.WithDenyList(netip.MustParsePrefix("0.0.0.0/0"))}, nil, []string{"listed"}},
		"dry run": {"dry", options{ginlimit.PerDay(1), ginlimit.WithDryRun()}, nil,
			[]string{"dry", "dry"}},
		"another policy that is closer": {"own", options{ginlimit.PerDay(3)}, options{ginlimit.PerDay(2)},
			[]string{"all", "all", "all"}},
		"another policy that is not": {"own", options{ginlimit.PerDay(2)}, options{ginlimit.PerDay(3)},
			[]string{"own", "own", "own"}},
		"another policy that prohibits": {"own", options{ginlimit.PerDay(2)}, options{ginlimit.PerDay(0)}, []string{"all"}},
		"the second limit of another policy": {"own", options{ginlimit.PerDay(5)},
			options{ginlimit.PerDay(9), ginlimit.PerHour(2)}, []string{"all", "all", "all"}},
		"another policy, in a dry run": {"own", options{ginlimit.PerDay(2)},
			options{ginlimit.PerDay(1), ginlimit.WithDryRun()}, []string{"all", "all", "own"}},
	} {
		for engine, make := range map[string]func(*testing.T) *testkit.Limiter{
			"miniredis": func(t *testing.T) *testkit.Limiter {
				rdb, _ := testkit.NewMiniredis(t)
				return testkit.NewLimiter(t, rdb)
			},
			"remembering denials": func(t *testing.T) *testkit.Limiter {
				rdb, _ := testkit.NewMiniredis(t)
				return testkit.NewLimiter(t, rdb, testkit.RemembersDenials())
			},
			"in the process": func(t *testing.T) *testkit.Limiter { return testkit.NewLocal(t) },
			"without Redis":  func(t *testing.T) *testkit.Limiter { return testkit.WithoutRedis(t) },
			"without Redis, shared": func(t *testing.T) *testkit.Limiter {
				return testkit.WithoutRedis(t, ginlimit.WithReplicas(1_000_000))
			},
		} {
			if engine == "without Redis, shared" && row.all != nil {
				continue // of equal shares, none is closer
			}
			t.Run(name+", "+engine, func(t *testing.T) {
				t.Parallel()
				var found, denied ginlimit.Result
				l, look := make(t), ginlimit.WithDeniedHandler(func(_ *gin.Context, r ginlimit.Result) { denied = r })
				policies := []*ginlimit.Policy{l.Must(row.name, append(options{testkit.ByUser(), look}, row.opts...)...)}
				if row.all != nil {
					policies = append(policies, l.Must("all", append(options{testkit.All(), look}, row.all...)...))
				}
				find := func(c *gin.Context) { c.Next(); found, _ = ginlimit.FromContext(c) }
				r := testkit.Serve(find, ginlimit.AllOf(policies...))
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
		p := testkit.NewPolicy(t, limiter, "named", ginlimit.PerDay(3))
		for i := range 5 {
			for _, method := range []func() (ginlimit.Result, error){
				func() (ginlimit.Result, error) { return p.Allow(t.Context(), "k") },
				func() (ginlimit.Result, error) { return p.Peek(t.Context(), "k") },
				func() (ginlimit.Result, error) { return p.AllowUpTo(t.Context(), "k", 1) },
			} {
				require.Equal(t, "named", testkit.Must(method()).Name, i)
			}
		}
		for _, limit := range []ginlimit.Limit{ginlimit.PerDay(0), ginlimit.PerDay(-1)} {
			r := testkit.Must(testkit.NewPolicy(t, limiter, limit.String(), limit).Peek(t.Context(), "k"))
			require.Equal(t, limit.String(), r.Name)
		}
		r, err := p.Allow(t.Context(), "")
		require.Error(t, err)
		require.Zero(t, r)
	})
}
