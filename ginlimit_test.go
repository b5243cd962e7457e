package ginlimit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What only the package itself can see. Tests of the public API are in tests/.

// TestMain raises the default timeout for the Examples: on a busy machine Redis would be late.
func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	defaultTimeout = time.Minute
	os.Exit(m.Run())
}

// TestKeptLimitsAreBounded, whatever the number of plans.
func TestKeptLimitsAreBounded(t *testing.T) {
	t.Parallel()
	limiter, err := NewLocal()
	require.NoError(t, err)
	rate := 0
	p, err := limiter.Policy("test", WithLimitFunc(func(context.Context, string) ([]Limit, error) {
		rate++
		return []Limit{PerHour(rate)}, nil
	}))
	require.NoError(t, err)
	for range 5000 {
		res, err := p.Peek(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, rate, res.Limit.Rate)
	}
	require.Len(t, p.clients.sets, 2048)
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
		"behind a proxy":            {[]string{"10.0.0.0/8"}, func(*gin.Engine) {}, "X-Forwarded-For"},
		"over IPv6":                 {[]string{"fd00::/8"}, func(*gin.Engine) {}, "X-Forwarded-For"},
		"by another header":         {[]string{"10.0.0.1"}, func(r *gin.Engine) { r.RemoteIPHeaders = []string{"x-client"} }, "x-client"},
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
