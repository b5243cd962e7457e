package web_test

import (
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestCopiesOutliveTheirRequests: what copies of a context say of a request stays, whoever reads them, while later
// requests of the handlers decide in the same memory.
func TestCopiesOutliveTheirRequests(t *testing.T) {
	t.Parallel()
	const rate = 30
	key := ginlimit.WithKey(ginlimit.ByHeader("Client"))
	answer := func(c *gin.Context, _ ginlimit.Result) { c.String(http.StatusTooManyRequests, "denied") }
	for name, row := range map[string]struct {
		handlers func(l *testkit.Limiter, read gin.HandlerFunc) []gin.HandlerFunc
		silent   bool // no header field says what is left
	}{
		"a handler after another": {handlers: func(l *testkit.Limiter, read gin.HandlerFunc) []gin.HandlerFunc {
			return []gin.HandlerFunc{
				func(c *gin.Context) { c.Next(); read(c) },
				l.Handler("outer", ginlimit.PerHour(2*rate), key), read,
				l.Handler("inner", ginlimit.PerHour(rate), key),
			}
		}},
		"a denied handler copies": {handlers: func(l *testkit.Limiter, read gin.HandlerFunc) []gin.HandlerFunc {
			copies := ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) { read(c); answer(c, r) })
			return []gin.HandlerFunc{l.Handler("one", ginlimit.PerHour(rate), key, copies), read}
		}},
		"the first of": {handlers: func(l *testkit.Limiter, read gin.HandlerFunc) []gin.HandlerFunc {
			nobody := testkit.NewPolicy(t, l, "nobody", ginlimit.PerHour(1), ginlimit.WithKey(ginlimit.ByHeader("Nobody")))
			client := testkit.NewPolicy(t, l, "client", ginlimit.PerHour(rate), key)
			return []gin.HandlerFunc{func(c *gin.Context) { c.Next(); read(c) }, ginlimit.FirstOf(nobody, client), read}
		}},
		"a dry run": {silent: true, handlers: func(l *testkit.Limiter, read gin.HandlerFunc) []gin.HandlerFunc {
			return []gin.HandlerFunc{l.Handler("dry", ginlimit.PerHour(rate), key, ginlimit.WithDryRun()), read}
		}},
		"outside the draft": {handlers: func(l *testkit.Limiter, read gin.HandlerFunc) []gin.HandlerFunc {
			draft := ginlimit.WithHeaders(ginlimit.RateLimitDraft)
			return []gin.HandlerFunc{
				func(c *gin.Context) { c.Next(); read(c) },
				l.Handler("outer", ginlimit.PerHour(rate), key), read,
				l.Handler("inner", ginlimit.PerHour(2*rate), key, draft), read,
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			readers := newCopyReaders(t)
			r := testkit.Serve(row.handlers(testkit.NewLocal(t), readers.read)...)
			var sent sync.WaitGroup
			for client := range 4 {
				sent.Go(func() {
					for n := range rate + 10 {
						rec := testkit.Get(r, "/", testkit.With("Client", strconv.Itoa(client)))
						want := strconv.Itoa(max(0, rate-1-n))
						if row.silent {
							want = ""
						}
						assert.Equal(t, want, testkit.Remaining(rec), "request %d of client %d", n, client)
						assert.Equal(t, n >= rate && !row.silent, rec.Code == http.StatusTooManyRequests)
					}
				})
			}
			sent.Wait()
			readers.end()
		})
	}
}

// copyReaders read copies of contexts, some until the end.
type copyReaders struct {
	t    *testing.T
	over chan struct{}
	all  sync.WaitGroup
}

func newCopyReaders(t *testing.T) *copyReaders { return &copyReaders{t: t, over: make(chan struct{})} }

// read copies a context, and compares what the copy says with what the context says now.
func (r *copyReaders) read(c *gin.Context) {
	const reads = 30
	copied := c.Copy()
	first, decided := ginlimit.FromContext(c)
	all := ginlimit.Results(c)
	if !assert.True(r.t, decided) || !assert.NotEmpty(r.t, first.Name) {
		return
	}
	r.all.Go(func() {
		for n := range reads {
			if n == reads-1 {
				<-r.over
			}
			again, is := ginlimit.FromContext(copied)
			if first != again || !is || !assert.Equal(r.t, all, ginlimit.Results(copied)) {
				r.t.Errorf("it was %+v, and is %+v, %v", first, again, is)
				return
			}
		}
	})
}

// end returns once all copies have been read again, after the last request.
func (r *copyReaders) end() {
	close(r.over)
	r.all.Wait()
}
