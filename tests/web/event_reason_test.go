package web_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestReasonsOfNoDecision are words for what the application or the client did, never the text of an error.
func TestReasonsOfNoDecision(t *testing.T) {
	t.Parallel()
	type options = []ginlimit.PolicyOption
	errOwn, hour := errors.New("alice@example.org"), ginlimit.PerHour(1)
	limits := func(err error) ginlimit.PolicyOption {
		return ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return nil, err })
	}
	key := func(err error) ginlimit.Option {
		return ginlimit.WithKey(func(*gin.Context) (string, error) { return "", err })
	}
	ended := func(r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		*r = *r.WithContext(ctx)
	}
	for name, row := range map[string]struct {
		options options
		request func(*http.Request)
		want    string
	}{
		"a decision":             {options: options{hour}},
		"no key":                 {options: options{hour, key(nil)}, want: "no_key"},
		"a key function fails":   {options: options{hour, key(errOwn)}, want: "key_func"},
		"an unknown client":      {options: options{limits(ginlimit.ErrUnknownClient)}, want: "unknown_client"},
		"a limit function fails": {options: options{limits(errOwn)}, want: "limit_func"},
		"plans are unavailable": {options: options{limits(errors.Join(ginlimit.ErrUnavailable,
			context.DeadlineExceeded))}, want: "limit_func"},
		"a malformed key":           {options: options{hour, key(ginlimit.ErrBadRequest)}, want: "bad_request"},
		"a slow database":           {options: options{limits(context.DeadlineExceeded)}, want: "limit_func"},
		"a key function is cut off": {options: options{hour, key(context.Canceled)}, want: "key_func"},
		"no limits":                 {options: options{limits(nil)}, want: "invalid_argument"},
		"a negative cost": {options: options{hour, ginlimit.WithCost(func(
			*gin.Context) int {
			return -1
		})}, want: "invalid_argument"},
		"the client left": {options: options{hour}, request: ended, want: "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var seen events
			limiter := testkit.NewLocal(t, ginlimit.WithObserver(seen.observe))
			request := row.request
			if request == nil {
				request = func(*http.Request) {}
			}
			testkit.Get(testkit.Serve(limiter.Handler("test",
				append(options{testkit.ByUser()}, row.options...)...)), "/", testkit.User("u"), request)
			got := seen.take(t)
			require.Len(t, got, 1)
			require.Equal(t, row.want, got[0].Reason)
		})
	}
}

// TestEventsTellHowLongARequestWaitedForASlot apart from the decision.
func TestEventsTellHowLongARequestWaitedForASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen events
		p := testkit.NewPolicy(t, testkit.NewLocal(t, ginlimit.WithObserver(seen.observe)), "test",
			ginlimit.PerHour(100), ginlimit.InFlight(1), ginlimit.WithQueue(10, time.Minute), testkit.ByUser())
		slot := testkit.Must(p.Reserve(t.Context(), "u", 1))
		time.AfterFunc(3*time.Second, slot.Release)
		h := testkit.Serve(p.Handler())
		var all sync.WaitGroup
		for range 2 { // the second waits for its turn
			all.Go(func() { assert.Equal(t, http.StatusOK, testkit.Get(h, "/", testkit.User("u")).Code) })
		}
		all.Wait()
		require.Len(t, seen.all, 3)
		require.Zero(t, seen.all[0].Waited)
		for _, event := range seen.all[1:] {
			require.GreaterOrEqual(t, event.Waited, 3*time.Second)
			require.Equal(t, event.Duration, event.Waited)
		}
	})
}
