package web_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestANameStandsOnce in a limiter, for one policy and those that With derives from it.
func TestANameStandsOnce(t *testing.T) {
	t.Parallel()
	const taken = `ginlimit: the limiter has a policy named "p" already; keep it and call its With, or choose another name`
	hour := ginlimit.PerHour(5)
	l := testkit.NewLocal(t)
	_, err := l.Policy("p")
	requireInvalid(t, err, "ginlimit: invalid argument: no limit given")
	p := testkit.NewPolicy(t, l, "p", hour) // a construction that failed has not taken the name
	_, err = l.Policy("p", hour)
	requireInvalid(t, err, taken)
	_, err = l.Policy("p", hour.WithBurst(-1), ginlimit.WithFloor(-1))
	requireInvalid(t, err, "ginlimit: WithFloor(-1): want at least 0",
		"ginlimit: invalid argument: 5/h burst -1: the burst is negative", taken)
	requireInvalid(t, testkit.PanicError(func() { l.Handler("p", hour) }), taken)
	for range 2 {
		testkit.Derive(t, testkit.Derive(t, p, ginlimit.WithFloor(1)), ginlimit.WithDryRun())
	}
	testkit.NewPolicy(t, l, "q", hour)
	testkit.NewPolicy(t, testkit.NewLocal(t), "p", hour)
	source := func(context.Context, string) ([]ginlimit.Limit, error) { return nil, nil }
	for _, want := range []string{"", `ginlimit: the limiter has plans named "p" already; keep them, or choose another name`} {
		if _, err := l.NewPlans("p", time.Minute, source); want != "" {
			requireInvalid(t, err, want)
		} else {
			require.NoError(t, err, "plans have names of their own")
		}
	}
}

// TestANameIsTakenByOneOfMany who want it at once.
func TestANameIsTakenByOneOfMany(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t).Limiter
	var made atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := l.Policy("p", ginlimit.PerHour(5)); err == nil {
				made.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, made.Load())
}

// TestNamesAreBounded: a program that makes a policy for each request hears of it, and keeps no memory for more.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	l := testkit.NewLocal(t).Limiter
	for i := range 65_536 {
		if _, err := l.Policy(strconv.Itoa(i), ginlimit.Unlimited()); err != nil {
			require.NoError(t, err)
		}
	}
	_, err := l.Policy("one more", ginlimit.Unlimited())
	requireInvalid(t, err,
		"ginlimit: the limiter has made 65536 policies; make each policy once, at start, not for each request")
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
		require.Equal(t, want, testkit.Must(ginlimit.ByValue("user")(c)))
	}
	c, _ := gin.CreateTestContext(nil)
	c.Set("user", 1.5)
	require.ErrorContains(t, testkit.Err(ginlimit.ByValue("user")(c)), "is a float64")
}
