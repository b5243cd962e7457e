package docs_test

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What caches, servers and client libraries make of a limiter's responses.

// forClients sets the fields that client libraries read. docs/guide.md links it.
func forClients(router *gin.Engine, limiter *ginlimit.Limiter) {
	size := func(c *gin.Context) int { return int(max(1, c.Request.ContentLength)) }
	router.POST("/embeddings", limiter.Handler("embeddings", ginlimit.PerMinute(5000), ginlimit.WithCost(size),
		ginlimit.WithHeaderFunc(func(h http.Header, limits []ginlimit.Result) {
			r := limits[0] // of the only limit
			wait := r.ResetAfter
			switch {
			case r.RetryAfter == ginlimit.Never:
				h.Set("X-Should-Retry", "false")
			case !r.Allowed:
				wait = r.RetryAfter
			}
			h.Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(wait).Unix()+1, 10))
		})), func(c *gin.Context) { c.Status(http.StatusOK) })
}

// TestClientLibrariesWaitOrGiveUp: an SDK that obeys X-Should-Retry does not repeat what never passes. A client that
// reads X-RateLimit-Reset as a Unix time comes back when it is served; by the default field it comes back at once.
func TestClientLibrariesWaitOrGiveUp(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router, limiter := signedIn(), local(t)
		forClients(router, limiter)
		router.POST("/default", limiter.Handler("default", ginlimit.PerMinute(1)), testkit.OK)
		post := func(size int) *httptest.ResponseRecorder {
			return send(router, http.MethodPost, "/embeddings", func(r *http.Request) { r.ContentLength = int64(size) })
		}
		reset := func(rec *httptest.ResponseRecorder) time.Duration {
			seconds, err := strconv.ParseInt(rec.Header().Get("X-RateLimit-Reset"), 10, 64)
			require.NoError(t, err)
			return time.Until(time.Unix(seconds, 0))
		}
		never := post(5001)
		require.Equal(t, http.StatusTooManyRequests, never.Code)
		require.Equal(t, "false", never.Header().Get("X-Should-Retry"))
		require.Equal(t, time.Second, reset(never), "the bucket is full")
		require.Empty(t, never.Header().Values("Retry-After"))

		first := post(4000)
		require.Equal(t, http.StatusOK, first.Code)
		require.Empty(t, first.Header().Values("X-Should-Retry"))
		require.Equal(t, 49*time.Second, reset(first), "until the bucket is full")

		denied := post(2000)
		require.Equal(t, http.StatusTooManyRequests, denied.Code)
		require.Empty(t, denied.Header().Values("X-Should-Retry"))
		require.Equal(t, "12", denied.Header().Get("Retry-After"))
		time.Sleep(reset(denied))
		require.Equal(t, http.StatusOK, post(2000).Code)

		send(router, http.MethodPost, "/default")
		require.Negative(t, reset(send(router, http.MethodPost, "/default")))
	})
}

// pageCache keeps all of the first response to each path that is not an error, as caches of pages do.
func pageCache() gin.HandlerFunc {
	type page struct {
		header http.Header
		body   string
	}
	pages := map[string]page{}
	return func(c *gin.Context) {
		if kept, ok := pages[c.Request.URL.Path]; ok {
			maps.Copy(c.Writer.Header(), kept.header)
			c.String(http.StatusOK, kept.body)
			c.Abort()
			return
		}
		if c.Next(); c.Writer.Status() == http.StatusOK {
			pages[c.Request.URL.Path] = page{c.Writer.Header().Clone(), "page"}
		}
	}
}

// TestAPageCacheReplaysTheFieldsOfOneClient to all others, whichever of the two handlers comes first, unless the policy
// has NoHeaders. A page from a cache before the limiter takes no token.
func TestAPageCacheReplaysTheFieldsOfOneClient(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		first, noHeaders bool
		replayed         string // X-RateLimit-Remaining of another client's only request
		denied           bool   // of ten requests
	}{
		"behind the limiter":             {false, false, "0", true},
		"before the limiter":             {true, false, "2", false},
		"behind it, without its headers": {false, true, "", true},
		"before it, without its headers": {true, true, "", false},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			var opts []ginlimit.PolicyOption
			if row.noHeaders {
				opts = append(opts, ginlimit.WithHeaders(ginlimit.NoHeaders))
			}
			handlers := []gin.HandlerFunc{local(t).Handler("pages", append(opts, ginlimit.PerHour(3))...), pageCache()}
			if row.first {
				handlers[0], handlers[1] = handlers[1], handlers[0]
			}
			router := gin.New()
			require.NoError(t, router.SetTrustedProxies(nil))
			router.Use(handlers...)
			router.GET("/:page", func(c *gin.Context) { c.String(http.StatusOK, "page") })
			get := func(path, from string) *httptest.ResponseRecorder {
				return testkit.Get(router, path, testkit.From(from))
			}

			if !row.first {
				get("/other", "192.0.2.1:1")
				get("/another", "192.0.2.1:1")
			}
			get("/page", "192.0.2.1:1")
			other := get("/page", "192.0.2.2:1")
			require.Equal(t, "page", other.Body.String())
			require.Equal(t, row.replayed, strings.Join(other.Header().Values("X-RateLimit-Remaining"), " and "))

			denied := false
			for range 10 {
				if rec := get("/page", "192.0.2.3:1"); rec.Code == http.StatusTooManyRequests {
					denied = true
					require.NotEmpty(t, rec.Header().Get("Retry-After"))
				}
			}
			require.Equal(t, row.denied, denied)
		})
	}
}

// pipes is a listener whose connections are in memory, so that time is simulated.
type pipes struct{ conns chan net.Conn }

// Accept implements [net.Listener].
func (p *pipes) Accept() (net.Conn, error) {
	conn, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// Close implements [net.Listener].
func (p *pipes) Close() error { return nil }

// Addr implements [net.Listener].
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestWriteTimeoutRunsInTheQueue: a request whose wait and handler take longer has no answer, though its handler runs,
// unless it has a deadline of its own.
func TestWriteTimeoutRunsInTheQueue(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		timeout, deadline time.Duration
		answered          bool
	}{
		"too short":                     {5 * time.Second, 0, false},
		"longer than wait and handler":  {25 * time.Second, 0, true},
		"too short, and a deadline":     {5 * time.Second, time.Minute, true},
		"no timeout":                    {0, 0, true},
		"longer than the wait alone":    {15 * time.Second, 0, false},
		"a deadline that is short also": {5 * time.Second, 6 * time.Second, false},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			limiter := local(t)
			router := gin.New()
			_ = router.SetTrustedProxies(nil)
			router.Use(func(c *gin.Context) {
				c.Request.RemoteAddr = "192.0.2.1:1"
				if row.deadline > 0 {
					require.NoError(t, http.NewResponseController(c.Writer).SetWriteDeadline(time.Now().Add(row.deadline)))
				}
			})
			served := 0
			router.GET("/", limiter.Handler("reports", ginlimit.InFlight(1), ginlimit.WithQueue(1, 20*time.Second)),
				func(c *gin.Context) {
					time.Sleep(10 * time.Second)
					served++
					c.String(http.StatusOK, "done")
				})
			listener := &pipes{make(chan net.Conn)}
			server := &http.Server{Handler: router, WriteTimeout: row.timeout}
			go func() { _ = server.Serve(listener) }()
			defer close(listener.conns)
			ask := func() error {
				transport := &http.Transport{DisableKeepAlives: true,
					DialContext: func(context.Context, string, string) (net.Conn, error) {
						client, conn := net.Pipe()
						listener.conns <- conn
						return client, nil
					}}
				response, err := (&http.Client{Transport: transport}).Get("http://reports.example/")
				if err == nil {
					require.Equal(t, http.StatusOK, response.StatusCode)
					require.NoError(t, response.Body.Close())
				}
				return err
			}
			var first sync.WaitGroup
			first.Go(func() { _ = ask() })
			synctest.Wait()
			err := ask() // it waits for ten seconds, and takes ten
			require.Equal(t, row.answered, err == nil, "%v", err)
			first.Wait()
			require.Equal(t, 2, served)
		})
	}
}
