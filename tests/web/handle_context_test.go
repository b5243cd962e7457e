package web_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestHandleContextRunsHandlersAgain as the guide says: a request to another path takes its tokens
// twice, and needs two slots. It does not if its path changes before Gin, or the limit is that of the
// new path alone.
func TestHandleContextRunsHandlersAgain(t *testing.T) {
	t.Parallel()
	moves := func(r *gin.Engine) gin.HandlerFunc {
		return func(c *gin.Context) {
			c.Request.URL.Path = "/new"
			r.HandleContext(c)
		}
	}
	ok := func(c *gin.Context) { c.Status(http.StatusOK) }
	ask := func(before func(*http.Request), onEngine bool, limit ginlimit.Limit) *httptest.ResponseRecorder {
		r := gin.New()
		require.NoError(t, r.SetTrustedProxies(nil))
		handler := testkit.NewLocal(t).Handler("all", limit)
		group := &r.RouterGroup
		if onEngine {
			r.Use(handler)
		} else {
			group = r.Group("/", handler)
		}
		group.GET("/new", ok)
		r.GET("/old", moves(r))
		return testkit.Get(r, "/old", before)
	}
	asIs := func(*http.Request) {}
	require.Equal(t, "8", testkit.Remaining(ask(asIs, true, ginlimit.PerHour(10))))
	require.Equal(t, http.StatusTooManyRequests, ask(asIs, true, ginlimit.InFlight(1)).Code)

	beforeGin := func(r *http.Request) { r.URL.Path = "/new" }
	for _, row := range []struct {
		before   func(*http.Request)
		onEngine bool
	}{{beforeGin, true}, {asIs, false}} {
		require.Equal(t, "9", testkit.Remaining(ask(row.before, row.onEngine, ginlimit.PerHour(10))))
		require.Equal(t, http.StatusOK, ask(row.before, row.onEngine, ginlimit.InFlight(1)).Code)
	}
}
