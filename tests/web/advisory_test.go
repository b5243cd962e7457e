package web_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What advisories of other limiters report, where no other test answers them. docs/SECURITY.md has the list.

// TestSpellingsOfAPathChooseNoBucket: whatever path is sent, it is served from the bucket of its route, or not at all
// (CVE-2023-38507 of Strapi, CVE-2026-133120 and CVE-2026-133250 of Fastify's middleware).
func TestSpellingsOfAPathChooseNoBucket(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*gin.Engine){
		"as Gin is":           func(*gin.Engine) {},
		"with fixed paths":    func(r *gin.Engine) { r.RedirectFixedPath, r.RemoveExtraSlash = true, true },
		"without redirects":   func(r *gin.Engine) { r.RedirectTrailingSlash = false },
		"by the escaped path": func(r *gin.Engine) { r.UseRawPath, r.UnescapePathValues = true, false },
	} {
		testkit.Run(t, name, func(t *testing.T) {
			limiter, served := testkit.NewLocal(t), 0
			r := gin.New()
			require.NoError(t, r.SetTrustedProxies(nil))
			set(r)
			handler := limiter.Handler("route", ginlimit.PerHour(3),
				ginlimit.WithKey(ginlimit.ByAll(ginlimit.ByRoute, ginlimit.ByClientIP)))
			r.POST("/login", handler, func(*gin.Context) { served++ })
			r.POST("/users/:id/login", handler, func(*gin.Context) { served++ })
			for _, paths := range [][]string{
				{"/login", "/login?a=b", "/login#a", "/%6Cogin", "/login?", "/Login", "/LOGIN", "/login/", "//login", "/./login",
					"/a/../login", "/login%2F", "/login/.", "/%2Flogin", `/\login`, "/login;a=b", "/login%00", "/login%20",
					"http://example.com/login", "http://EXAMPLE.com/login", "/login%3Fa"},
				{"/users/1/login", "/users/2/login", "/users/%31/login", "/users/a%2Fb/login", "/users//login", "/users/ /login",
					"/users/1/login/", "/users/1//login", "/users/%2E/login", "/users/1/%6Cogin"},
			} {
				served = 0
				for range 2 {
					for _, path := range paths {
						testkit.Get(r, "/", func(req *http.Request) {
							req.Method = http.MethodPost
							if u, err := req.URL.Parse(path); err == nil {
								req.URL = u
							}
						})
					}
				}
				require.Equal(t, 3, served, paths[0])
			}
		})
	}
}

// TestAPanicLetsNobodyPass: whatever of the application panics, the request is not served (CVE-2026-92790 of Higress).
func TestAPanicLetsNobodyPass(t *testing.T) {
	t.Parallel()
	key := ginlimit.ByClientIP
	for name, opts := range map[string][]ginlimit.PolicyOption{
		"key":  {ginlimit.PerHour(1), ginlimit.WithKey(func(*gin.Context) (string, error) { panic("on purpose") })},
		"cost": {ginlimit.PerHour(1), ginlimit.WithKey(key), ginlimit.WithCost(func(*gin.Context) int { panic("on purpose") })},
		"skip": {ginlimit.PerHour(1), ginlimit.WithKey(key), ginlimit.WithSkip(func(*gin.Context) bool { panic("on purpose") })},
		"limits": {ginlimit.WithKey(key), ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			panic("on purpose")
		})},
		"tenant": {ginlimit.PerHour(100), ginlimit.WithKey(key),
			ginlimit.WithShares(func(*gin.Context) (string, int) { panic("on purpose") })},
		"fields": {ginlimit.PerHour(1), ginlimit.WithKey(key),
			ginlimit.WithHeaderFunc(func(http.Header, []ginlimit.Result) { panic("on purpose") })},
	} {
		testkit.Run(t, name, func(t *testing.T) {
			l := testkit.NewLocal(t)
			plain := l.Must("plain", ginlimit.PerHour(100))
			for _, policies := range [][]*ginlimit.Policy{{l.Must("alone", opts...)}, {plain, l.Must("beside", opts...)}} {
				served := false
				r := testkit.Serve(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }),
					ginlimit.AllOf(policies...), func(*gin.Context) { served = true })
				require.Equal(t, http.StatusInternalServerError, testkit.Get(r, "/").Code)
				require.False(t, served)
			}
		})
	}
}
