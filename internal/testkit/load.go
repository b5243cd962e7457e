package testkit

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// AskMany has many callers ask for many keys at once, each key's bucket as often as it holds tokens and once more.
func AskMany(t *testing.T, limiter *Limiter) {
	const callers, keys, burst = 128, 200, 5
	limit := ginlimit.PerDay(1).WithBurst(burst)
	var next atomic.Int64
	var admitted [keys]atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= keys*(burst+1) {
					return
				}
				r, err := limiter.Allow(t.Context(), fmt.Sprint("client ", i%keys), limit)
				if assert.NoError(t, err) && r.Allowed {
					admitted[i%keys].Add(1)
				}
			}
		})
	}
	all.Wait()
	for i := range admitted {
		require.EqualValues(t, burst, admitted[i].Load(), "client %d", i)
	}
}
