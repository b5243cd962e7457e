package web_test

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// limitFunc is what an application's function of a policy does.
type limitFunc func(ctx context.Context, client string) ([]ginlimit.Limit, error)

// slow returns a function that takes a time, and then returns an error or panics.
func slow(d time.Duration, err error, panics any) limitFunc {
	return func(context.Context, string) ([]ginlimit.Limit, error) {
		time.Sleep(d)
		if panics != nil {
			panic(panics)
		}
		return []ginlimit.Limit{ginlimit.PerMinute(10)}, err
	}
}

// heeding takes a second, unless its context ends.
func heeding(ctx context.Context, _ string) ([]ginlimit.Limit, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Second):
		return []ginlimit.Limit{ginlimit.PerHour(10)}, nil
	}
}

// withFuncs returns a policy for each function.
func withFuncs(
	t *testing.T, limiter *ginlimit.Limiter, funcs []limitFunc, opts ...ginlimit.PolicyOption,
) (all []*ginlimit.Policy) {
	for i, f := range funcs {
		name := string(rune('a' + i))
		all = append(all, testkit.Must(limiter.Policy(name, append(opts, ginlimit.WithLimitFunc(f))...)))
	}
	return all
}

// TestFunctionsOfSeveralPoliciesAreAskedTogether, and the first in order of the policies answers.
func TestFunctionsOfSeveralPoliciesAreAskedTogether(t *testing.T) {
	t.Parallel()
	const d = 20 * time.Millisecond
	first, second := errors.New("first"), errors.New("second")
	quick := slow(0, nil, nil)
	for name, row := range map[string]struct {
		funcs  []limitFunc
		most   time.Duration
		err    error
		panics any
	}{
		"four": {[]limitFunc{slow(d, nil, nil), slow(d, nil, nil), slow(d, nil, nil), slow(d, nil, nil)},
			d + time.Millisecond, nil, nil},
		"one":              {[]limitFunc{slow(d, nil, nil)}, d, nil, nil},
		"at once":          {[]limitFunc{quick, quick, quick}, 0, nil, nil},
		"the last is slow": {[]limitFunc{quick, quick, slow(d, nil, nil)}, d, nil, nil},
		"the second error is sooner": {[]limitFunc{slow(2*d, first, nil), slow(d, second, nil)},
			2 * d, first, nil},
		"an error at once": {[]limitFunc{slow(0, first, nil), slow(d, nil, "why")}, 0, first, nil},
		"a panic in the first": {[]limitFunc{slow(d, nil, "why"), slow(2*d, second, nil)},
			2*d + time.Millisecond, nil, "why"},
		"a panic in the second": {[]limitFunc{slow(2*d, nil, nil), slow(d, nil, http.ErrAbortHandler)},
			2 * d, nil, http.ErrAbortHandler},
		"a panic after an error": {[]limitFunc{slow(2*d, first, nil), slow(d, nil, "why")}, 2 * d, first, nil},
		"an error after a panic": {[]limitFunc{slow(2*d, nil, nil), slow(d, nil, "why"), slow(d, second, nil)},
			2 * d, nil, "why"},
		"an error cuts the later ones": {[]limitFunc{slow(d, first, nil), heeding, heeding}, d, first, nil},
		"it cuts no earlier one": {[]limitFunc{slow(2*d, nil, nil), slow(3*d, nil, nil), slow(d, second, nil), heeding},
			3*d + time.Millisecond, second, nil},
		"a panic cuts the later ones": {[]limitFunc{slow(d, nil, nil), slow(d, nil, "why"), heeding},
			d + time.Millisecond, nil, "why"},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			limiter := testkit.Must(ginlimit.NewLocal())
			defer func() { require.NoError(t, limiter.Close()) }()
			policies := withFuncs(t, limiter, row.funcs, ginlimit.WithKey(testkit.Everybody),
				ginlimit.WithErrorHandler(func(c *gin.Context, err error) { c.String(500, err.Error()) }))
			charges := make([]ginlimit.Charge, len(policies))
			for i, p := range policies {
				charges[i] = ginlimit.Charge{Policy: p, Client: "all", N: 1}
			}
			r := testkit.Serve(ginlimit.AllOf(policies...))
			for kind, ask := range map[string]func() error{
				"AllOf": func() error {
					if rec := testkit.Get(r, "/"); rec.Code != 200 {
						return errors.New(rec.Body.String())
					}
					return nil
				},
				"ReserveAll": func() error { _, err := ginlimit.ReserveAll(t.Context(), charges...); return err },
			} {
				start := time.Now()
				if row.panics != nil {
					require.PanicsWithValue(t, row.panics, func() { _ = ask() }, kind)
				} else if err := ask(); row.err != nil {
					require.EqualError(t, err, row.err.Error(), kind)
				} else {
					require.NoError(t, err, kind)
				}
				require.LessOrEqual(t, time.Since(start), row.most, kind)
			}
		})
	}
}

// TestFunctionsOfAGinContextAreAskedInOrder: several goroutines may not use it.
func TestFunctionsOfAGinContextAreAskedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 20 * time.Millisecond
		limiter := testkit.Must(ginlimit.NewLocal())
		defer func() { require.NoError(t, limiter.Close()) }()
		policies := withFuncs(t, limiter, []limitFunc{slow(d, nil, nil), slow(d, nil, nil)})
		var took []time.Duration
		r := testkit.Serve(func(c *gin.Context) {
			within, cancel := context.WithTimeout(c, time.Minute)
			defer cancel()
			for _, ctx := range []context.Context{c, within, c.Request.Context()} {
				start := time.Now()
				_, err := ginlimit.ReserveAll(ctx, ginlimit.Charge{Policy: policies[0], Client: "a", N: 1},
					ginlimit.Charge{Policy: policies[1], Client: "a", N: 1})
				assert.NoError(t, err)
				took = append(took, time.Since(start))
			}
		})
		testkit.Get(r, "/")
		require.Equal(t, []time.Duration{2 * d, 2 * d, d + time.Millisecond}, took)
	})
}

// TestAFunctionThatEndsItsGoroutineEndsTheRequests, as it does alone.
func TestAFunctionThatEndsItsGoroutineEndsTheRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := testkit.Must(ginlimit.NewLocal())
		defer func() { require.NoError(t, limiter.Close()) }()
		policies := withFuncs(t, limiter, []limitFunc{slow(time.Second, nil, nil),
			func(context.Context, string) ([]ginlimit.Limit, error) { runtime.Goexit(); return nil, nil }})
		r, returned, ended := testkit.Serve(ginlimit.AllOf(policies...)), false, make(chan struct{})
		go func() {
			defer close(ended)
			testkit.Get(r, "/")
			returned = true
		}()
		<-ended
		require.False(t, returned)
	})
}

// TestOverridesAnswerBesideFunctions, and dry runs whose functions fail do not end the request.
func TestOverridesAnswerBesideFunctions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 20 * time.Millisecond
		limiter := testkit.Must(ginlimit.NewLocal())
		defer func() { require.NoError(t, limiter.Close()) }()
		policies := withFuncs(t, limiter, []limitFunc{slow(d, errors.New("it fails"), nil), slow(d, nil, nil),
			slow(d, nil, nil)}, ginlimit.WithKey(testkit.Everybody))
		policies = append(policies, testkit.Must(limiter.Policy("dry", ginlimit.WithDryRun(),
			ginlimit.WithKey(testkit.Everybody), ginlimit.WithLimitFunc(slow(d, errors.New("dry"), nil)))))
		require.NoError(t, limiter.Override(t.Context(), ginlimit.Override{
			Policy: "a", Client: "all", Limits: []ginlimit.Limit{ginlimit.PerMinute(3)}, Until: time.Now().Add(time.Hour),
		}))
		var results []ginlimit.Result
		r := testkit.Serve(ginlimit.AllOf(policies...), func(c *gin.Context) { results = ginlimit.Results(c) })
		start := time.Now()
		require.Equal(t, 200, testkit.Get(r, "/").Code)
		require.LessOrEqual(t, time.Since(start), d+time.Millisecond)
		require.Len(t, results, 3)
		require.Equal(t, 2, results[0].Remaining)
		require.Equal(t, 9, results[1].Remaining)
	})
}

// TestAnErrorCutsADryRunThatIsNotDecided: that of a reservation. Those of a request are decided after an error too.
func TestAnErrorCutsADryRunThatIsNotDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = 20 * time.Millisecond
		limiter := testkit.Must(ginlimit.NewLocal())
		defer func() { require.NoError(t, limiter.Close()) }()
		fails := errors.New("it fails")
		policies := withFuncs(t, limiter, []limitFunc{slow(d, fails, nil)}, ginlimit.WithKey(testkit.Everybody),
			ginlimit.WithErrorHandler(func(c *gin.Context, err error) { c.String(500, err.Error()) }))
		asked := 0
		dry := testkit.Must(limiter.Policy("dry", ginlimit.WithDryRun(), ginlimit.WithKey(testkit.Everybody),
			ginlimit.WithLimitFunc(func(ctx context.Context, client string) ([]ginlimit.Limit, error) {
				asked++
				return heeding(ctx, client)
			})))
		policies = append(policies, dry)
		start := time.Now()
		_, err := ginlimit.ReserveAll(t.Context(), ginlimit.Charge{Policy: policies[0], Client: "all", N: 1},
			ginlimit.Charge{Policy: dry, Client: "all", N: 1})
		require.Equal(t, fails, err)
		require.Equal(t, d, time.Since(start))

		require.Equal(t, 500, testkit.Get(testkit.Serve(ginlimit.AllOf(policies...)), "/").Code)
		require.Equal(t, 2, asked)
		require.Equal(t, 9, testkit.Must(dry.Peek(t.Context(), "all")).Remaining)
	})
}
