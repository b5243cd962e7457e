package gintrust

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
