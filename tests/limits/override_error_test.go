package limits_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What programs read of the errors of overrides and results.

// TestBadOverridesNameTheirFields, and are the fault of who asks.
func TestBadOverridesNameTheirFields(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l := testkit.NewLocal(t)
	testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3))
	testkit.NewPolicy(t, l, "shared", ginlimit.PerMinute(3), ginlimit.WithShares(
		func(*gin.Context) (string, int) { return "", 1 }))
	good := override("good", ginlimit.PerMinute(9))
	with := func(change func(o *ginlimit.Override)) ginlimit.Override {
		o := good
		o.Client = "bad"
		change(&o)
		return o
	}
	limits := func(limits ...ginlimit.Limit) ginlimit.Override {
		return with(func(o *ginlimit.Override) { o.Limits = limits })
	}
	for name, row := range map[string]struct {
		bad  ginlimit.Override
		want []string
	}{
		"a policy":        {with(func(o *ginlimit.Override) { o.Policy = "" }), []string{"Policy"}},
		"another policy":  {with(func(o *ginlimit.Override) { o.Policy = "apj" }), []string{"Policy"}},
		"a policy's text": {with(func(o *ginlimit.Override) { o.Policy = "\xff" }), []string{"Policy"}},
		"a client's text": {with(func(o *ginlimit.Override) { o.Client = "\xff" }), []string{"Client"}},
		"a note's text":   {with(func(o *ginlimit.Override) { o.Note = "\xff" }), []string{"Note"}},
		"a client": {with(func(o *ginlimit.Override) { o.Client = strings.Repeat("c", 1025) }),
			[]string{"Client"}},
		"a client twice":  {with(func(o *ginlimit.Override) { o.Client = "good" }), []string{"Client"}},
		"an end":          {with(func(o *ginlimit.Override) { o.Until = time.Time{} }), []string{"Until"}},
		"a note":          {with(func(o *ginlimit.Override) { o.Note = "a\n" }), []string{"Note"}},
		"two limits":      {limits(ginlimit.Limit{}, ginlimit.InFlight(-1)), []string{"Limits", "Limits"}},
		"slots alone":     {limits(ginlimit.InFlight(1)), []string{"Limits"}},
		"an unnamed zone": {limits(unnamedZone()), []string{"Limits"}},
		"two of shares": {with(func(o *ginlimit.Override) {
			o.Policy, o.Limits = "shared", []ginlimit.Limit{ginlimit.PerMinute(3), ginlimit.InFlight(3)}
			o.Limits[0].Algorithm = ginlimit.FixedWindow
		}), []string{"Limits", "Limits"}},
		"all": {ginlimit.Override{Limits: []ginlimit.Limit{{}}, Note: "\n"}, []string{"Policy", "Note", "Until", "Limits"}},
	} {
		for index, all := range [][]ginlimit.Override{{row.bad}, {good, row.bad}} {
			if name == "a client twice" && index == 0 {
				continue
			}
			err := l.OverrideAll(ctx, all...)
			var fields []string
			for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
				var fault *ginlimit.OverrideError
				require.ErrorAs(t, err, &fault, "%s: %v", name, err)
				require.ErrorIs(t, fault, ginlimit.ErrInvalidArgument)
				require.Equal(t, index, fault.Index)
				want := fault.Err.Error()
				if index == 1 {
					want += " (override 2)"
				}
				require.Equal(t, want, err.Error())
				require.Equal(t, http.StatusBadRequest, ginlimit.ErrorStatus(fmt.Errorf("wrapped: %w", err)))
				fields = append(fields, fault.Field)
			}
			require.Equal(t, row.want, fields, "%s: %v", name, err)
		}
	}
	for _, n := range []int{0, 1001} {
		var fault *ginlimit.OverrideError
		require.ErrorAs(t, l.OverrideAll(ctx, make([]ginlimit.Override, n)...), &fault)
		require.Equal(t, -1, fault.Index)
	}
	require.Empty(t, testkit.Must(l.Overrides(ctx)))
}

// TestAnOutageIsNoOverridesFault: no field is wrong if Redis does not say which policies there are.
func TestAnOutageIsNoOverridesFault(t *testing.T) {
	t.Parallel()
	down := testkit.WithoutRedis(t)
	other := override("ann", ginlimit.PerMinute(9))
	other.Policy = "of another process"
	err := down.OverrideAll(t.Context(), other, override("bob", ginlimit.PerMinute(9)))
	require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	require.False(t, errors.As(err, new(*ginlimit.OverrideError)), "%v", err)
	require.Equal(t, http.StatusServiceUnavailable, ginlimit.ErrorStatus(err))
	require.Equal(t, http.StatusInternalServerError, ginlimit.ErrorStatus(new(ginlimit.Limiter).Override(t.Context(), other)),
		"the program is wrong, and not who asked")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, down.Override(ended, other), context.Canceled)
}

// TestAResultOfABadLimitHasNoJSON, and the error says what is wrong with it.
func TestAResultOfABadLimitHasNoJSON(t *testing.T) {
	t.Parallel()
	for _, good := range []ginlimit.Limit{{}, ginlimit.Unlimited(), unnamedZone()} {
		testkit.Must(ginlimit.Result{Limit: good}.MarshalJSON())
	}
	bad := ginlimit.Result{Limit: ginlimit.Limit{Rate: 1}}
	_, err := bad.MarshalJSON()
	require.EqualError(t, err, "ginlimit: invalid argument: 1/0s: the period is missing")
	_, err = json.Marshal(bad)
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
}
