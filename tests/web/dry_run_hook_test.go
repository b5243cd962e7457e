package web_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// exits is a hook that ends the goroutine of a command, once it is told so.
type exits struct{ now atomic.Bool }

func (*exits) DialHook(next redis.DialHook) redis.DialHook { return next }

func (e *exits) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if e.now.Load() {
			runtime.Goexit()
		}
		return next(ctx, cmd)
	}
}

func (*exits) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestADryRunAloneEndsNoRequest: it decides apart also if it is the only policy, so that what ends its goroutine does
// not end the request's.
func TestADryRunAloneEndsNoRequest(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	hook := new(exits)
	rdb.AddHook(hook)
	router := gin.New()
	router.GET("/", ginlimit.New(rdb, "api", ginlimit.PerMinute(100), ginlimit.WithDryRun()),
		func(c *gin.Context) { c.Status(http.StatusOK) })
	answered := make(chan bool, 1)
	request := func() bool {
		go func() {
			ok := false
			defer func() { answered <- ok }()
			w := httptest.NewRecorder()
			router.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			ok = w.Code == http.StatusOK
		}()
		return <-answered
	}
	require.True(t, request())
	require.True(t, request())
	hook.now.Store(true) // the caller sends its call itself now, as Redis answers
	require.True(t, request())
}
