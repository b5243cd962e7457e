package web_test

import (
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestCopiesOutliveTheirRequests: what copies of a context say of a request stays, whoever reads them, while later
// requests of the handlers decide in the same memory.
func TestCopiesOutliveTheirRequests(t *testing.T) {
	t.Parallel()
	const clients, requests, rate, reads = 4, 40, 30, 30
	l := testkit.NewLocal(t)
	key := ginlimit.WithKey(ginlimit.ByHeader("Client"))
	over, readers := make(chan struct{}), sync.WaitGroup{}
	read := func(c *gin.Context) {
		copied := c.Copy()
		first, decided := ginlimit.FromContext(c)
		all := ginlimit.Results(c)
		readers.Go(func() {
			for n := range reads {
				if n == reads-1 {
					<-over
				}
				again, is := ginlimit.FromContext(copied)
				if first != again || decided != is || !assert.Equal(t, all, ginlimit.Results(copied)) {
					t.Errorf("it was %+v, %v, and is %+v, %v", first, decided, again, is)
					return
				}
			}
		})
	}
	r := testkit.Serve(
		func(c *gin.Context) { c.Next(); read(c) },
		l.Handler("outer", ginlimit.PerHour(2*rate), key),
		func(c *gin.Context) { read(c) },
		l.Handler("inner", ginlimit.PerHour(rate), key),
	)
	var sent sync.WaitGroup
	for client := range clients {
		sent.Go(func() {
			for n := range requests {
				rec := testkit.Get(r, "/", func(r *http.Request) { r.Header.Set("Client", strconv.Itoa(client)) })
				want := strconv.Itoa(max(0, rate-1-n))
				assert.Equal(t, want, testkit.Remaining(rec), "request %d of client %d", n, client)
			}
		})
	}
	sent.Wait()
	close(over)
	readers.Wait()
	require.False(t, t.Failed())
}
