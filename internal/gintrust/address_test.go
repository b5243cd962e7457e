package gintrust

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLastAddresses: of a long header only the end is read, and no address is cut.
func TestLastAddresses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("203.0.113.7:5, ", 60_000)
	for name, row := range map[string]struct {
		lines []string
		want  string
	}{
		"one address":   {[]string{"203.0.113.7"}, "203.0.113.7"},
		"several lines": {[]string{"203.0.113.7, 10.0.0.2", "10.0.0.1:1"}, "203.0.113.7, 10.0.0.2,10.0.0.1:1"},
		"no line":       {nil, ""},
		"a long line":   {[]string{long + "10.0.0.1:1"}, strings.Repeat(" 203.0.113.7:5,", 33) + " 10.0.0.1:1"},
		"lines before it": {[]string{"10.0.0.3", long + "10.0.0.1:1"},
			strings.Repeat(" 203.0.113.7:5,", 33) + " 10.0.0.1:1"},
		"lines after it":      {[]string{long, "10.0.0.3"}, strings.Repeat(" 203.0.113.7:5,", 34) + " ,10.0.0.3"},
		"no end of an entry":  {[]string{strings.Repeat("a:1", 300_000)}, ""},
		"lines without end":   {strings.Split(strings.Repeat("a:1,", 300_000)+"b", ","), "a:1,a:1,a:1,a:1,a:1,a:1,a:1,b"},
		"lines without bytes": {make([]string, 50_000), ",,,,,,,"},
	} {
		require.Equal(t, row.want, lastAddresses(row.lines), name)
	}
}

// asks counts how often Gin is asked for the address of a request with this context.
type asks struct {
	context.Context
	n int
}

// Value implements [context.Context]. Gin needs to know whether the request came through a unix socket.
func (a *asks) Value(key any) any {
	if key == http.LocalAddrContextKey {
		a.n++
	}
	return a.Context.Value(key)
}

// TestPortsAreSeldomLookedFor in headers that clients send themselves, and never in what Gin does not trust.
func TestPortsAreSeldomLookedFor(t *testing.T) {
	t.Parallel()
	const requests = 20_000
	for name, row := range map[string]struct {
		from, value string
		asked       int // by a look
	}{
		"a stranger's":                 {"192.0.2.1:1", "203.0.113.7:5", 1},
		"a proxy's, without ports":     {"10.0.0.1:1", "203.0.113.7", 3},
		"what a client has sent first": {"10.0.0.1:1", "203.0.113.9:5, 203.0.113.7", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, r := gin.CreateTestContext(httptest.NewRecorder())
			require.NoError(t, r.SetTrustedProxies([]string{"10.0.0.0/8"}))
			ctx := &asks{Context: t.Context()}
			c.Request = httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
			c.Request.RemoteAddr = row.from
			log := slog.New(slog.NewTextHandler(io.Discard, nil))
			var trust Trust
			var logged Warnings
			trust.warn(c, log, &logged)
			require.Zero(t, ctx.n, "without a header")
			c.Request.Header.Set("X-Forwarded-For", row.value)
			for range firstLooks {
				trust.warn(c, log, &logged)
			}
			require.Equal(t, firstLooks*row.asked, ctx.n)
			for range requests {
				trust.warn(c, log, &logged)
			}
			later := ctx.n/row.asked - firstLooks // 78 on average
			require.Positive(t, later)
			require.Less(t, later, 4*requests/thenOneOf)
			require.False(t, logged.ports.Load())
		})
	}
}

// TestPortsAreFoundLater: a proxy that writes them is added when many requests have come.
func TestPortsAreFoundLater(t *testing.T) {
	t.Parallel()
	c, r := gin.CreateTestContext(httptest.NewRecorder())
	require.NoError(t, r.SetTrustedProxies([]string{"10.0.0.0/8"}))
	c.Request = httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	var trust Trust
	var logged Warnings
	for _, request := range []struct{ from, value string }{
		{"192.0.2.1:1", strings.Repeat("203.0.113.7:5, ", 60_000)}, {"10.0.0.1:1", "203.0.113.7"},
		{"10.0.0.2:1", strings.Repeat("203.0.113.7, ", 60_000) + "203.0.113.7:5"},
	} {
		require.False(t, logged.ports.Load())
		c.Request.RemoteAddr = request.from
		c.Request.Header.Set("X-Forwarded-For", request.value)
		for range 20_000 {
			trust.warn(c, log, &logged)
		}
	}
	require.True(t, logged.ports.Load())
}

// TestHeadersOfAnotherGinAreItsDefaults: its contexts may not hold an engine with names.
func TestHeadersOfAnotherGinAreItsDefaults(t *testing.T) {
	t.Parallel()
	type engine struct{ RemoteIPHeaders []string }
	for _, context := range []any{
		&struct{}{}, &struct{ engine *engine }{}, &struct{ engine any }{}, &struct{ engine *struct{} }{&struct{}{}},
		&struct {
			engine struct{ RemoteIPHeaders string }
		}{}, &struct {
			engine struct{ RemoteIPHeaders []int }
		}{},
	} {
		assert.Equal(t, gin.New().RemoteIPHeaders, remoteIPHeaders(context), "%T", context)
	}
	for _, context := range []any{
		&struct{ engine *engine }{&engine{[]string{"A", "b"}}}, &struct{ engine engine }{engine{[]string{"A", "b"}}},
	} {
		assert.Equal(t, []string{"A", "b"}, remoteIPHeaders(context))
	}
}

// TestAnOldGinIsFound: it reads the first line of a header alone, which the client of a proxy may have sent.
func TestAnOldGinIsFound(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		trusted []string
		edit    func(*gin.Engine)
		header  string
	}{
		"behind a proxy": {[]string{"10.0.0.0/8"}, func(*gin.Engine) {}, "X-Forwarded-For"},
		"over IPv6":      {[]string{"fd00::/8"}, func(*gin.Engine) {}, "X-Forwarded-For"},
		"by another header": {[]string{"10.0.0.1"},
			func(r *gin.Engine) { r.RemoteIPHeaders = []string{"x-client"} }, "x-client"},
		"nobody is trusted":         {nil, func(*gin.Engine) {}, ""},
		"which reads no header":     {[]string{"10.0.0.0/8"}, func(r *gin.Engine) { r.ForwardedByClientIP = false }, ""},
		"a platform's header alone": {nil, func(r *gin.Engine) { r.TrustedPlatform = gin.PlatformCloudflare }, ""},
	} {
		c, r := gin.CreateTestContext(httptest.NewRecorder())
		require.NoError(t, r.SetTrustedProxies(row.trusted))
		row.edit(r)
		require.Zero(t, spoofOf(c), name)
		old := findSpoof(remoteIPHeaders(c), trustedProxy(c), func(r *http.Request) string {
			for header, lines := range r.Header {
				r.Header[header] = lines[:1]
			}
			c.Request = r
			return c.ClientIP()
		})
		require.Equal(t, spoof{row.header, row.header != ""}, old, name)
	}
}
