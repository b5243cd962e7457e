package web_test

import (
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// byTenant is a key function of an application, which the compiler may copy to its callers.
func byTenant(header string) ginlimit.KeyFunc {
	return func(c *gin.Context) (string, error) { return c.GetHeader(header), nil }
}

// TestPoliciesOfOneNameHaveOneKey: functions that one constructor makes in two places are one key,
// and functions of different constructors are not.
func TestPoliciesOfOneNameHaveOneKey(t *testing.T) {
	t.Parallel()
	hour := ginlimit.PerHour(1)
	l := testkit.NewLocal(t)
	for _, err := range []error{
		errorOf(l.Policy("all", hour, ginlimit.WithKey(ginlimit.ByAll(ginlimit.ByRoute)))),
		errorOf(l.Policy("all", hour, ginlimit.WithKey(ginlimit.ByAll(ginlimit.ByRoute)))),
		errorOf(l.Policy("any", hour, ginlimit.WithKey(ginlimit.ByAny(ginlimit.ByRoute)))),
		errorOf(l.Policy("any", hour, ginlimit.WithKey(ginlimit.ByAny(ginlimit.ByRoute)))),
		errorOf(l.Policy("tenant", hour, ginlimit.WithKey(byTenant("X-Tenant")))),
		errorOf(l.Policy("tenant", hour, ginlimit.WithKey(byTenant("X-Tenant")))),
		errorOf(l.Policy("reset", hour)),
		errorOf(l.Policy("reset", hour, ginlimit.WithKey(byTenant("X-Tenant")))),
	} {
		require.NoError(t, err)
	}
	require.EqualError(t, errorOf(l.Policy("all", hour, ginlimit.WithKey(byTenant("X-Tenant")))),
		`ginlimit: policies named "all" have different keys; give one of them another name`)
	require.NoError(t, errorOf(l.Policy("tenant", hour, ginlimit.WithKey(byTenant("X-Tenant")))))
	require.Panics(t, func() { l.Handler("tenant", hour) }, "it counts addresses")
	require.NoError(t, errorOf(l.Policy("tenant", hour)), "its methods need no key")
}

func errorOf(_ *ginlimit.Policy, err error) error { return err }

// TestDefaultsThatDoNotFitAPolicyAreForOthers: an option of the limiter is no error of a policy that
// has no use for it; the policy's own option is.
func TestDefaultsThatDoNotFitAPolicyAreForOthers(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	hour, sliding := ginlimit.PerHour(1), ginlimit.PerHour(1).WithAlgorithm(ginlimit.SlidingWindow)
	queue, lease := ginlimit.WithQueue(1, time.Second), ginlimit.WithLease(time.Second)
	l := testkit.NewLimiter(t, rdb, queue, lease)
	require.NoError(t, errorOf(l.Policy("rate", hour)))
	require.NoError(t, errorOf(l.Policy("window", sliding)))
	require.NoError(t, errorOf(l.Policy("slots", ginlimit.InFlight(1))))
	require.NoError(t, errorOf(l.Policy("free", ginlimit.Unlimited())))
	require.ErrorContains(t, errorOf(l.Policy("own", ginlimit.Unlimited(), queue)), "there is nothing to wait for")
	require.ErrorContains(t, errorOf(l.Policy("own", sliding, lease)), "does not go together with a SlidingWindow")
	require.PanicsWithError(t, "ginlimit: WithLease does not go together with a SlidingWindow: "+
		"a token counts from when it was used; use another algorithm",
		func() { ginlimit.New(rdb, "all", sliding, lease) })
}

// TestByValueReadsNamedTypes: an application's own types of strings and integers are keys.
func TestByValueReadsNamedTypes(t *testing.T) {
	t.Parallel()
	type userID int64
	type name string
	for want, value := range map[string]any{"7": userID(7), "alice": name("alice"), "8": uint16(8)} {
		c, _ := gin.CreateTestContext(nil)
		c.Set("user", value)
		key, err := ginlimit.ByValue("user")(c)
		require.NoError(t, err)
		require.Equal(t, want, key)
	}
	c, _ := gin.CreateTestContext(nil)
	c.Set("user", 1.5)
	_, err := ginlimit.ByValue("user")(c)
	require.ErrorContains(t, err, "is a float64")
}
