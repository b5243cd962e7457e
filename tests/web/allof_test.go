package web_test

import (
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Several policies of one request.

// three limits per address, per API key and all clients together.
func three(l *testkit.Limiter, opts ...ginlimit.PolicyOption) *gin.Engine {
	policy := func(name string, own ...ginlimit.PolicyOption) *ginlimit.Policy {
		return l.Must(name, append(own, opts...)...)
	}
	return testkit.Serve(ginlimit.AllOf(policy("address", ginlimit.PerDay(3)),
		policy("api key", testkit.Key("X-Api-Key"), ginlimit.PerDay(5), ginlimit.PerHour(50)),
		policy("all", testkit.All(), ginlimit.PerDay(8))))
}

// stores are where a request's policies are decided on. With the tag integration there are more.
var stores = map[string]func(t *testing.T) *testkit.Limiter{
	"miniredis": func(t *testing.T) *testkit.Limiter {
		rdb, _ := testkit.NewMiniredis(t)
		return testkit.NewLimiter(t, rdb)
	},
	"in the process": func(t *testing.T) *testkit.Limiter {
		return testkit.NewLocal(t)
	},
	"without Redis": func(t *testing.T) *testkit.Limiter { return testkit.WithoutRedis(t) },
}

func TestAllOrNone(t *testing.T) {
	t.Parallel()
	for name, make := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := make(t)
			r := three(l)
			ask := func(address, key string) (int, string, string) {
				rec := testkit.Get(r, "/", testkit.From(address+":1"), testkit.With("X-Api-Key", key))
				return rec.Code, rec.Header().Get("X-RateLimit-Limit"), testkit.Remaining(rec)
			}
			for i, c := range []struct {
				address, key string
				code         int
				limit, left  string
			}{
				{"192.0.2.1", "a", 200, "3", "2"}, {"192.0.2.1", "a", 200, "3", "1"}, {"192.0.2.1", "a", 200, "3", "0"},
				{"192.0.2.1", "a", 429, "3", "0"}, {"192.0.2.1", "b", 429, "3", "0"},
				{"192.0.2.2", "a", 200, "5", "1"}, {"192.0.2.2", "a", 200, "5", "0"},
				{"192.0.2.2", "a", 429, "5", "0"},
				{"192.0.2.2", "b", 200, "3", "0"}, // the denials cost its address nothing
				{"192.0.2.3", "b", 200, "8", "1"}, {"192.0.2.4", "c", 200, "8", "0"}, {"192.0.2.5", "c", 429, "8", "0"},
			} {
				code, limit, left := ask(c.address, c.key)
				assert.Equal(t, []any{c.code, c.limit, c.left}, []any{code, limit, left}, "request %d", i)
			}
			for key, want := range map[string]int{ginlimit.Key("address", "192.0.2.5"): 3,
				ginlimit.Key("address", "192.0.2.3"): 2} {
				assert.Equal(t, want, testkit.Must(l.Peek(t.Context(), key, ginlimit.PerDay(3))).Remaining, key)
			}
		})
	}
}

func TestAllOfUnlimitedProhibitedAndWithoutAKey(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	l := testkit.NewLimiter(t, rdb)
	two, free := l.Must("counted", ginlimit.PerDay(2)), l.Must("free", ginlimit.PerDay(-1))
	status := func(p *ginlimit.Policy, others ...*ginlimit.Policy) (int, string) {
		rec := testkit.Get(testkit.Serve(ginlimit.AllOf(append([]*ginlimit.Policy{p}, others...)...)), "/")
		return rec.Code, testkit.Remaining(rec)
	}
	expect := func(code int, left string) func(int, string) {
		return func(gotCode int, gotLeft string) {
			t.Helper()
			assert.Equal(t, []any{code, left}, []any{gotCode, gotLeft})
		}
	}
	unlimited := l.Must("unlimited", testkit.All(), ginlimit.PerDay(-1))
	expect(200, "")(status(free, unlimited))
	expect(200, "1")(status(two, unlimited))
	expect(200, "1")(status(free, l.Must("two", testkit.All(), ginlimit.PerDay(2))))
	expect(429, "0")(status(two, l.Must("none", testkit.All(), ginlimit.PerDay(0))))
	expect(400,
		"")(status(two, l.Must("user", testkit.Key("X-User"), ginlimit.PerDay(2))))
	expect(500, "")(status(two,
		l.Must("nobody", ginlimit.WithKey(func(*gin.Context) (string, error) { return "", nil }), ginlimit.PerDay(2))))
	expect(200, "0")(status(two)) // what was denied or failed took nothing
}
