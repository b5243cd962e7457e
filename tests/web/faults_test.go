package web_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What programs read of the errors of constructors.

// place is which option or argument an OptionError is about.
type place struct {
	index  int
	option string
}

// placesOf returns what each of joined errors is about, and requires that all are of one type.
func placesOf(t *testing.T, err error) (all []place) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok, "%v", err)
	for _, err := range joined.Unwrap() {
		var fault *ginlimit.OptionError
		require.ErrorAs(t, err, &fault)
		require.ErrorIs(t, fault, ginlimit.ErrInvalidArgument)
		require.Equal(t, fault.Err.Error(), err.Error())
		require.Equal(t, http.StatusInternalServerError, ginlimit.ErrorStatus(err), "the application is at fault")
		all = append(all, place{fault.Index, fault.Option})
	}
	return all
}

// TestFaultsNameTheirOptions of every constructor, in the order of the texts.
func TestFaultsNameTheirOptions(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	settle := ginlimit.WithSettle(func(*gin.Context) int { return 1 })
	refund := ginlimit.WithRefund(func(*gin.Context) bool { return true })
	l := testkit.Must(ginlimit.NewLimiter(rdb, ginlimit.WithFloor(3)))
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	p := testkit.Must(l.Policy("api", ginlimit.PerHour(9), ginlimit.InFlight(2)))
	testkit.Must(l.NewPlans("plans", time.Minute, noPlans))
	policy := func(opts ...ginlimit.PolicyOption) error { return testkit.Err(l.Policy("p", opts...)) }
	hour, slots := ginlimit.PerHour(9), ginlimit.InFlight(2)
	shares := ginlimit.WithShares(func(*gin.Context) (string, int) { return "a", 1 })
	for name, row := range map[string]struct {
		err  error
		want []place
	}{
		"a limiter": {
			testkit.Err(ginlimit.NewLimiter((*redis.Client)(nil), ginlimit.WithTimeout(time.Second), nil, ginlimit.WithTimeout(0),
				settle, refund, ginlimit.WithDenyCache(-1))),
			[]place{{1, ""}, {2, "WithTimeout"}, {5, "WithDenyCache"}, {3, "WithSettle"}, {-1, "rdb"}},
		},
		"a local limiter": {
			testkit.Err(ginlimit.NewLocal(ginlimit.WithFloor(-1), ginlimit.WithPrefix("p"))),
			[]place{{0, "WithFloor"}, {1, "WithPrefix"}},
		},
		"a policy": {
			testkit.Err(l.Policy("", ginlimit.WithBan(0, time.Hour), hour, ginlimit.WithLimits(slots, slots, hour))),
			[]place{{0, "WithBan"}, {-1, "name"}, {2, "WithLimits"}, {2, "WithLimits"}},
		},
		"no limit":           {policy(ginlimit.WithFloor(0)), []place{{-1, "Limit"}}},
		"a name again":       {testkit.Err(l.Policy("api", hour)), []place{{-1, "name"}}},
		"a limit":            {policy(hour, ginlimit.Limit{}), []place{{1, "Limit"}}},
		"two that exclude":   {policy(hour, refund, settle), []place{{2, "WithSettle"}}},
		"a default floor":    {policy(ginlimit.PerHour(3)), []place{{-1, "WithFloor"}}},
		"its own":            {policy(hour, ginlimit.WithFloor(9)), []place{{1, "WithFloor"}}},
		"a list given twice": {policy(hour, ginlimit.WithAllowList(), ginlimit.WithAllowList()), []place{{2, "WithAllowList"}}},
		"too large to share": {policy(shares, ginlimit.PerHour(1<<25)), []place{{0, "WithShares"}}},
		"another policy": {
			testkit.Err(p.With(nil, ginlimit.WithKey(ginlimit.ByRoute), hour, ginlimit.InFlight(3), ginlimit.WithFloor(9))),
			[]place{{0, ""}, {1, "WithKey"}, {2, "Limit"}, {3, "Limit"}, {4, "WithFloor"}},
		},
		"plans": {
			testkit.Err(l.NewPlans("", 0, nil)), []place{{-1, "name"}, {-1, "life"}, {-1, "source"}},
		},
		"plans again": {testkit.Err(l.NewPlans("plans", time.Minute, noPlans)), []place{{-1, "name"}}},
	} {
		require.Equal(t, row.want, placesOf(t, row.err), "%s: %v", name, row.err)
	}
}

func noPlans(context.Context, string) ([]ginlimit.Limit, error) {
	return nil, ginlimit.ErrUnknownClient
}
