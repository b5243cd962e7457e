package limits_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestSlotsAndTokensAreTakenTogether(t *testing.T) {
	t.Parallel()
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		p := testkit.Must(e.Limiter.Policy("api", ginlimit.PerHour(4).WithAlgorithm(e.Algorithm), ginlimit.InFlight(2)))
		one, two := testkit.Reserve(t, p), testkit.Reserve(t, p)
		require.True(t, one.Result().Allowed)
		require.True(t, two.Result().Allowed)
		require.Equal(t, 2, two.Result().Remaining, "tokens")
		require.Equal(t, "api", two.Result().Name)

		none := testkit.Reserve(t, p)
		require.Equal(t, ginlimit.Result{
			Limit: ginlimit.Limit{InFlight: 2}, Name: "api-c", RetryAfter: time.Second,
			ResetAfter: time.Second, Source: none.Result().Source, Cause: ginlimit.CauseInFlight,
		}, none.Result())
		none.Release() // holds nothing

		two.Release()
		two.Release()
		three := testkit.Reserve(t, p)
		require.True(t, three.Result().Allowed)
		require.Equal(t, 1, three.Result().Remaining, "the denial took no token")
		require.False(t, testkit.Reserve(t, p).Result().Allowed, "a slot is released once")

		three.Release()
		require.True(t, testkit.Reserve(t, p).Result().Allowed)
		one.Release()
		res := testkit.Reserve(t, p).Result()
		require.False(t, res.Allowed)
		require.Equal(t, "api", res.Name, "no token is left")
		peek := testkit.Must(p.Peek(t.Context(), "alice"))
		require.Equal(t, "api", peek.Name)

		require.NoError(t, p.Reset(t.Context(), "alice"))
		require.True(t, testkit.Reserve(t, p).Result().Allowed, "a denial for tokens takes no slot")
		require.Equal(t, "api-c", testkit.Reserve(t, p).Result().Name, "a reset leaves slots alone")
		peek = testkit.Must(p.Peek(t.Context(), "alice"))
		require.Equal(t, "api-c", peek.Name)
		for name, take := range map[string]func() error{
			"Allow":     func() error { _, err := p.Allow(t.Context(), "alice"); return err },
			"AllowN":    func() error { _, err := p.AllowN(t.Context(), "alice", 3); return err },
			"AllowUpTo": func() error { _, err := p.AllowUpTo(t.Context(), "alice", 3); return err },
			"Wait":      func() error { return p.Wait(t.Context(), "alice") },
			"WaitN":     func() error { return p.WaitN(t.Context(), "alice", 3) },
		} {
			require.ErrorIs(t, take(), ginlimit.ErrInvalidArgument, "%s releases no slot", name)
			require.ErrorContains(t, take(), "Reserve", name)
		}
	})
}

// TestSlotsAreSharedByProcesses uses limiters in place of processes: each has a name and counts of its own.
func TestSlotsAreSharedByProcesses(t *testing.T) {
	t.Parallel()
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var all []*ginlimit.Policy
		for range 3 {
			p := testkit.Must(testkit.NewLimiter(t, b.Redis).Policy("api", ginlimit.PerHour(1000), ginlimit.InFlight(4)))
			all = append(all, p)
		}
		slots := []*ginlimit.Reservation{testkit.Reserve(t, all[0]), testkit.Reserve(t, all[0]),
			testkit.Reserve(t, all[1]), testkit.Reserve(t, all[2])}
		for _, slot := range slots {
			require.True(t, slot.Result().Allowed)
		}
		for _, p := range all {
			require.False(t, testkit.Reserve(t, p).Result().Allowed)
		}
		slots[1].Release()
		synctest.Wait() // until Redis is told of the release
		require.True(t, testkit.Reserve(t, all[2]).Result().Allowed)
		require.False(t, testkit.Reserve(t, all[0]).Result().Allowed)
	})
}

func TestRequestsHoldSlots(t *testing.T) {
	t.Parallel()
	gin.SetMode(gin.TestMode)
	for name, end := range map[string]func(*gin.Context){
		"returns": func(*gin.Context) {},
		"panics":  func(*gin.Context) { panic("on purpose") },
		"aborts":  func(c *gin.Context) { c.AbortWithStatus(http.StatusTeapot) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := testkit.Must(ginlimit.NewLocal())
				began, finish := make(chan struct{}), make(chan struct{})
				router := gin.New()
				router.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }))
				router.Use(l.Handler("api", ginlimit.PerHour(100), ginlimit.InFlight(2),
					ginlimit.WithHeaders(ginlimit.RateLimitDraft|ginlimit.XRateLimit), ginlimit.WithKey(
						func(*gin.Context) (string, error) { return "alice", nil })))
				router.GET("/", func(c *gin.Context) {
					began <- struct{}{}
					<-finish
					end(c)
				})
				serve := func() *httptest.ResponseRecorder {
					w := httptest.NewRecorder()
					router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
					return w
				}
				for range 2 {
					go serve()
					<-began
				}
				w := serve()
				require.Equal(t, http.StatusTooManyRequests, w.Code)
				require.Equal(t, "1", w.Header().Get("Retry-After"))
				require.Equal(t, `"api";q=100;w=3600, "api-c";q=2;qu="concurrent-requests"`, w.Header().Get("RateLimit-Policy"))
				require.Equal(t, `"api";r=98, "api-c";r=0;t=1`, w.Header().Get("RateLimit"))
				require.Equal(t, "2", w.Header().Get("X-RateLimit-Limit"))
				require.Equal(t, "0", w.Header().Get("X-RateLimit-Remaining"))
				require.Contains(t, w.Body.String(), `"violated-policies":["api-c"]`)
				close(finish)
				synctest.Wait()
				go func() { <-began }()
				w = serve()
				require.NotEqual(t, http.StatusTooManyRequests, w.Code)
				require.Equal(t, "100", w.Header().Get("X-RateLimit-Limit"), "a slot is the closest limit if there is none left")
				require.Equal(t, `"api";r=97;t=36, "api-c";r=1`, w.Header().Get("RateLimit"))
			})
		})
	}
}

// TestPeekKnowsOfAReleaseAtOnce in the process that makes it.
func TestPeekKnowsOfAReleaseAtOnce(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	p := testkit.Must(testkit.NewLimiter(t, rdb, testkit.Patient()).Policy("api", ginlimit.InFlight(1)))
	for range 50 {
		slot := testkit.Reserve(t, p)
		require.True(t, slot.Result().Allowed)
		slot.Release()
		res := testkit.Must(p.Peek(t.Context(), "alice"))
		require.True(t, res.Allowed)
		require.Equal(t, 1, res.Remaining)
	}
}
