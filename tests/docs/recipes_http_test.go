package docs_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Functions of docs/guide.md that stand beside main: around handlers that are not Gin's, and for what a handler
// reserves.

func adapt(limits ...gin.HandlerFunc) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		engine := gin.New()               // without Recovery: panics are your server's
		_ = engine.SetTrustedProxies(nil) // or the networks of your proxies
		engine.Use(limits...)
		engine.NoRoute(func(c *gin.Context) {
			c.Status(http.StatusOK) // not 404
			next.ServeHTTP(c.Writer, c.Request)
			c.Writer.WriteHeaderNow() // or Gin gives an empty 404 a body
		})
		return engine
	}
}

func setFields(h http.Header, r ginlimit.Result) {
	if r.Name != "" && r.Limit.Rate >= 0 { // not after an error, and not unlimited
		h.Set("X-RateLimit-Limit", strconv.Itoa(cmp.Or(r.Limit.Burst, r.Limit.Rate, r.Limit.InFlight)))
		h.Set("X-RateLimit-Remaining", strconv.Itoa(r.Remaining))
	}
	if r.RetryAfter > 0 && r.RetryAfter != ginlimit.Never {
		h.Set("Retry-After", strconv.Itoa(int((r.RetryAfter+time.Second-1)/time.Second))) // rounded up
	}
}

func TestFunctionsAreThoseOfTheGuide(t *testing.T) {
	t.Parallel()
	code, found := testkit.Read(t, "tests/docs/recipes_http_test.go"), 0
	for _, block := range goBlocks(t, "docs/guide.md") {
		if strings.HasPrefix(block, "func adapt(") || strings.HasPrefix(block, "func setFields(") {
			assert.Contains(t, code, "\n"+block+"\n")
			found++
		}
	}
	require.Equal(t, 2, found)
}

// unlimited returns a handler behind a limit that allows everything.
func unlimited(t *testing.T, next http.HandlerFunc) http.Handler {
	return adapt(local(t).Handler("all", ginlimit.PerSecond(1_000_000)))(next)
}

// TestAdaptedHandlersAnswerAsTheyWould without the adapter, but for the limit's header fields.
func TestAdaptedHandlersAnswerAsTheyWould(t *testing.T) {
	t.Parallel()
	rows := map[string]http.HandlerFunc{
		"nothing":             func(http.ResponseWriter, *http.Request) {},
		"a body alone":        func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") },
		"an empty body":       func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(nil) },
		"an empty 404":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"404":                 http.NotFound,
		"201 and a body":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); fmt.Fprint(w, "made") },
		"204":                 func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"500":                 func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "fault", 500) },
		"a status twice":      func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "a"); w.WriteHeader(500) },
		"a redirect":          func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/else", http.StatusFound) },
		"a field":             func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Own", "1") },
		"a file":              func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "go.mod") },
		"a trailer":           trailer,
		"what was asked":      asked,
		"a mux without route": http.NewServeMux().ServeHTTP,
		"a panic":             func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"a panic after bytes": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "a")
			panic(http.ErrAbortHandler)
		},
	}
	for name, next := range rows {
		testkit.Run(t, name, func(t *testing.T) {
			serve := func(h http.Handler) string {
				server := httptest.NewUnstartedServer(h)
				server.Config.ErrorLog = log.New(io.Discard, "", 0) // of a status that is set twice
				server.Start()
				t.Cleanup(server.Close)
				return server.URL
			}
			direct, adapted := serve(next), serve(unlimited(t, next))
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE", "PROPFIND", "x-own"} {
				for _, path := range []string{"/", "/a", "/a/", "//a//b", "/a%2Fb", "/a/../b", "/a?b=1;c&d=%2F", "/%ff"} {
					want, got := answerOf(t, method, direct+path), answerOf(t, method, adapted+path)
					require.Equal(t, want, got, "%s %s", method, path)
				}
			}
		})
	}
}

// asked answers with what it was asked.
func asked(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, r.Method, r.RequestURI, r.URL.Path, r.URL.RawPath, r.URL.RawQuery)
}

// trailer answers with a trailer.
func trailer(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Trailer", "X-Sum")
	_, _ = io.WriteString(w, "body")
	w.Header().Set("X-Sum", "7")
	w.Header().Set(http.TrailerPrefix+"X-More", "8")
}

// answerOf returns all of an answer but what a limit sets.
func answerOf(t *testing.T, method, url string) string {
	request := testkit.Must(http.NewRequest(method, url, nil))
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return "no answer"
	}
	defer response.Body.Close()
	for name := range response.Header {
		if name == "Date" || strings.HasPrefix(name, "X-Ratelimit-") {
			response.Header.Del(name)
		}
	}
	body, err := io.ReadAll(response.Body)
	return fmt.Sprint(response.Status, response.Header, response.ContentLength, string(body), err, response.Trailer)
}

// TestAdaptedHandlersGetTheirRequest itself: its context, path values and pattern, and a pattern that a mux inside
// sets is seen outside.
func TestAdaptedHandlersGetTheirRequest(t *testing.T) {
	t.Parallel()
	type key struct{}
	limit := adapt(local(t).Handler("all", ginlimit.PerMinute(60)))
	inner, outer := http.NewServeMux(), http.NewServeMux()
	var got *http.Request
	inner.HandleFunc("GET /in/{id}", func(_ http.ResponseWriter, r *http.Request) { got = r })
	outer.Handle("GET /out/{id}", limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r })))
	for path, h := range map[string]http.Handler{"/in/7": limit(inner), "/out/7": outer} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r = r.WithContext(context.WithValue(r.Context(), key{}, "kept"))
		h.ServeHTTP(httptest.NewRecorder(), r)
		require.Same(t, r, got)
		require.Equal(t, "kept", got.Context().Value(key{}))
		require.Equal(t, "7", got.PathValue("id"))
		require.Contains(t, r.Pattern, "/{id}")
	}
}

// TestAdaptedHandlersAreLimited: a denied request gets the usual answer and does not reach the handler; a client
// cannot choose its address.
func TestAdaptedHandlersAreLimited(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		served, refund := 0, func(c *gin.Context) bool { return c.Writer.Status() == http.StatusNotFound }
		limiter := local(t)
		limit := adapt(ginlimit.AllOf(must(limiter.Policy("all", ginlimit.PerMinute(2), ginlimit.WithRefund(refund)))))
		mux := http.NewServeMux()
		mux.HandleFunc("/things", func(http.ResponseWriter, *http.Request) { served++ })
		h := limit(mux)
		for range 9 {
			require.Equal(t, http.StatusNotFound, testkit.Get(h, "/none").Code) // gives its token back
		}
		for _, forged := range []string{"1", "2"} {
			rec := testkit.Get(h, "/things", testkit.With("X-Forwarded-For", "192.0.2."+forged))
			require.Equal(t, http.StatusOK, rec.Code)
		}
		denied := testkit.Get(h, "/things", testkit.With("X-Forwarded-For", "192.0.2.3"))
		require.Equal(t, http.StatusTooManyRequests, denied.Code)
		require.Equal(t, "30", denied.Header().Get("Retry-After"))
		require.Equal(t, "application/problem+json", denied.Header().Get("Content-Type"))
		require.Contains(t, denied.Body.String(), `"violated-policies":["all"]`)
		require.Equal(t, 2, served)
		other := limit(http.HandlerFunc(asked)) // one policy around several handlers, also inside each other
		require.Equal(t, http.StatusTooManyRequests, testkit.Get(other, "/").Code)
		nested := adapt(limiter.Handler("outer", ginlimit.PerMinute(9)))(other)
		require.Equal(t, http.StatusTooManyRequests, testkit.Get(nested, "/").Code)
		time.Sleep(time.Minute)
		require.Equal(t, http.StatusOK, testkit.Get(nested, "/").Code)
	})
}

// TestPanicsPassTheAdapter as they are, and leave no slot taken.
func TestPanicsPassTheAdapter(t *testing.T) {
	t.Parallel()
	limiter := local(t)
	h := adapt(limiter.Handler("all", ginlimit.InFlight(1)))(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) { panic(r.URL.Path) }))
	for _, path := range []string{"/a", "/b", "/c"} {
		require.PanicsWithValue(t, path, func() { testkit.Get(h, path) })
		require.Zero(t, limiter.Stats().Slots)
	}
}

// TestAdaptedStreams are flushed as they are written, and a connection may be taken over.
func TestAdaptedStreams(t *testing.T) {
	t.Parallel()
	more := make(chan bool)
	mux := http.NewServeMux()
	mux.HandleFunc("/stream", func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "line\n")
			assert.NoError(t, http.NewResponseController(w).Flush())
			<-more
		}
	})
	hijack := func(conn net.Conn, buffer *bufio.ReadWriter, err error) {
		if assert.NoError(t, err) {
			_, _ = buffer.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: own\r\nConnection: Upgrade\r\n\r\n")
			_, _ = buffer.WriteString("hello\n")
			assert.NoError(t, buffer.Flush())
			assert.NoError(t, conn.Close())
		}
	}
	mux.HandleFunc("/control", func(w http.ResponseWriter, _ *http.Request) {
		hijack(http.NewResponseController(w).Hijack())
	})
	mux.HandleFunc("/hijack", func(w http.ResponseWriter, _ *http.Request) { hijack(w.(http.Hijacker).Hijack()) })
	server := httptest.NewServer(unlimited(t, mux.ServeHTTP))
	defer server.Close()
	response := testkit.Must(http.Get(server.URL + "/stream"))
	defer response.Body.Close()
	for lines := bufio.NewReader(response.Body); ; more <- true { // only then it writes another
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		require.Equal(t, "line\n", line)
		require.Zero(t, lines.Buffered(), "more than one line at once")
	}
	for _, path := range []string{"/control", "/hijack"} {
		response := testkit.Must(http.Get(server.URL + path))
		require.Equal(t, http.StatusSwitchingProtocols, response.StatusCode)
		require.Equal(t, "hello\n", string(testkit.Must(io.ReadAll(response.Body))))
		require.NoError(t, response.Body.Close())
	}
}

// TestAdaptedHandlersServeAtOnce: no request gets another's answer.
func TestAdaptedHandlersServeAtOnce(t *testing.T) {
	t.Parallel()
	h := unlimited(t, asked)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 200 {
				path := fmt.Sprintf("/%d/%d", i, j)
				rec := testkit.Get(h, path)
				if !assert.Equal(t, "200 GET"+path+path, fmt.Sprint(rec.Code, " ", rec.Body.String())) {
					return
				}
			}
		})
	}
	all.Wait()
}

// BenchmarkAdapt is what the adapter costs: a handler alone, in it, and both with a limit.
func BenchmarkAdapt(b *testing.B) {
	limiter := testkit.NewLocal(b).Limiter
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	router := gin.New()
	_ = router.SetTrustedProxies(nil)
	router.GET("/", limiter.Handler("gin", ginlimit.PerSecond(1e9)), gin.WrapH(next))
	for _, row := range []struct {
		name    string
		handler http.Handler
	}{
		{"alone", next}, {"adapted", adapt(func(*gin.Context) {})(next)},
		{"limit in Gin", router}, {"limit adapted", adapt(limiter.Handler("net/http", ginlimit.PerSecond(1e9)))(next)},
	} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			r, w := httptest.NewRequest(http.MethodGet, "/", nil), discard{}
			for b.Loop() {
				row.handler.ServeHTTP(w, r)
			}
		})
	}
}

// discard is a response that nobody reads.
type discard http.Header

// Header implements [http.ResponseWriter].
func (w discard) Header() http.Header { return http.Header(w) }

// Write implements [http.ResponseWriter].
func (w discard) Write(p []byte) (int, error) { return len(p), nil }

// WriteString implements [io.StringWriter].
func (w discard) WriteString(s string) (int, error) { return len(s), nil }

// WriteHeader implements [http.ResponseWriter].
func (w discard) WriteHeader(int) {}

// TestReservedFieldsAreThoseOfMiddleware for the same limits, of requests that are allowed and denied.
func TestReservedFieldsAreThoseOfMiddleware(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		failed := http.Header{}
		setFields(failed, (*ginlimit.Reservation)(nil).Result())
		require.Empty(t, failed)
		denials, waits := 0, 0
		for _, limits := range [][]ginlimit.Limit{
			{ginlimit.PerMinute(7)}, {ginlimit.PerSecond(3)}, {ginlimit.PerSecond(10).WithBurst(2)}, {ginlimit.PerHour(1)},
			{ginlimit.Per(3, time.Second+time.Millisecond)}, {ginlimit.PerMinute(5), ginlimit.PerHour(9)},
			{ginlimit.PerCalendar(3, ginlimit.CalendarDay(nil))}, {ginlimit.Unlimited()}, {ginlimit.Prohibited()},
			{ginlimit.PerMinute(4).WithAlgorithm(ginlimit.FixedWindow)}, {ginlimit.InFlight(2)},
			{ginlimit.PerMinute(4).WithAlgorithm(ginlimit.SlidingWindow)}, {ginlimit.InFlight(1), ginlimit.PerMinute(3)},
			{ginlimit.PerMinute(1).WithBurst(6)}, {ginlimit.PerDay(2).WithBurst(1)},
		} {
			for cost := range 3 {
				cost++ // 1 to 3
				policy := must(local(t).Policy("own", ginlimit.WithLimits(limits...),
					ginlimit.WithCost(func(*gin.Context) int { return cost })))
				other := must(local(t).Policy("own", ginlimit.WithLimits(limits...)))
				router := signedIn()
				router.GET("/", policy.Handler(), func(*gin.Context) { <-t.Context().Done() })
				for n := range 12 {
					if n == 8 {
						err := policy.Block(t.Context(), "192.0.2.1", 2500*time.Millisecond) // not if nothing is counted
						require.Equal(t, err, other.Block(t.Context(), "client", 2500*time.Millisecond))
					}
					rec := httptest.NewRecorder()
					go router.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
					synctest.Wait()
					work, err := other.Reserve(t.Context(), "client", cost)
					require.NoError(t, err)
					got := http.Header{}
					setFields(got, work.Result())
					for _, field := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "Retry-After"} {
						require.Equal(t, rec.Header().Values(field), got.Values(field), "%s of %v at %d", field, limits, cost)
					}
					if rec.Code == http.StatusTooManyRequests {
						denials++
						waits += len(got["Retry-After"])
					}
					time.Sleep(777 * time.Millisecond)
					defer work.Release()
				}
			}
		}
		require.Greater(t, waits, 100)
		require.Greater(t, denials, waits+50)
	})
}
