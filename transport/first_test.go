package transport_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

// stopsOnce returns an API that stops its key for so many seconds by its n-th response, and answers the first request
// after it in so much time.
func stopsOnce(n int64, seconds string, first time.Duration) *partner {
	var calls atomic.Int64
	return newPartner(func(w http.ResponseWriter, _ *http.Request) {
		switch calls.Add(1) {
		case n:
			w.Header().Set("Retry-After", seconds)
			w.WriteHeader(http.StatusTooManyRequests)
		case n + 1:
			time.Sleep(first)
		}
	})
}

// TestAFirstRequestThatHangs holds its key for ten seconds.
func TestAFirstRequestThatHangs(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := stopsOnce(1, "50", 30*time.Second)
		client, _ := process(t, b.Redis, p, limits(ginlimit.PerSecond(10)))
		testkit.Must(get(t.Context(), client, url))
		var all sync.WaitGroup
		all.Go(func() { _, err := get(t.Context(), client, url); assert.NoError(t, err) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 55*time.Second)
		defer cancel()
		_, err := get(ctx, client, url)
		var late *transport.TooLateError
		require.ErrorAs(t, err, &late)
		require.Zero(t, late.RetryAfter, "the stop is over")
		for range 2 {
			testkit.Must(get(t.Context(), client, url))
		}
		require.Equal(t, 60*time.Second, p.calls()[2].Round(time.Second))
		require.Equal(t, 60*time.Second, p.calls()[3].Round(time.Second), "nobody goes first any more")
		all.Wait()
	})
}
