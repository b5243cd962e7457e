package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// application returns the routes, and the Redis in the process where url is "".
func application(t *testing.T, url string) (*gin.Engine, *ownRedis) {
	t.Helper()
	rdb, own, err := connect(url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rdb.Close() })
	if own != nil {
		t.Cleanup(own.Close)
	}
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(time.Minute)) // of a slow machine
	require.NoError(t, err)
	t.Cleanup(func() { _ = limiter.Close() })
	return router(limiter, own), own
}

// ask sends a request with header fields, given as name and value.
func ask(r http.Handler, method, path string, fields ...string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(fields); i += 2 {
		request.Header.Set(fields[i], fields[i+1])
	}
	recorder := httptest.NewRecorder()
	r.ServeHTTP(recorder, request)
	return recorder
}

func TestPageIsOneFile(t *testing.T) {
	r, _ := application(t, "")
	response := ask(r, "GET", "/")
	require.Equal(t, http.StatusOK, response.Code)
	require.Equal(t, "text/html; charset=utf-8", response.Header().Get("Content-Type"))
	require.Contains(t, response.Header().Get("Content-Security-Policy"), "default-src 'none'")
	require.Empty(t, response.Header().Get("X-RateLimit-Limit"), "to look at it costs nothing")

	html := response.Body.String()
	for _, link := range regexp.MustCompile(`(?:src|href)=["']?([^"'> ]*)`).FindAllStringSubmatch(html, -1) {
		assert.True(t, strings.HasPrefix(link[1], "data:"), link[0])
	}
	for _, link := range regexp.MustCompile(`url\(([^)]*)\)`).FindAllStringSubmatch(html, -1) {
		assert.True(t, strings.HasPrefix(link[1], "#"), link[0])
	}
	assert.NotContains(t, html, "@import")
	assert.Less(t, len(html), 24<<10, "small")
}

func TestPlay(t *testing.T) {
	r, _ := application(t, "")
	for range 30 {
		response := ask(r, "HEAD", "/play")
		require.Equal(t, http.StatusOK, response.Code)
		require.Equal(t, "20", response.Header().Get("X-RateLimit-Limit"))
		require.Equal(t, "20", response.Header().Get("X-RateLimit-Remaining"), "looking is free")
	}
	begun := time.Now()
	allowed := 0
	var refused *httptest.ResponseRecorder
	for refused == nil {
		if response := ask(r, "GET", "/play"); response.Code == http.StatusOK {
			allowed++
		} else {
			refused = response
		}
		require.LessOrEqual(t, float64(allowed), 20+time.Since(begun).Seconds(), "burst + rate × t")
	}
	require.GreaterOrEqual(t, allowed, 20)
	require.Equal(t, http.StatusTooManyRequests, refused.Code)
	require.Equal(t, "0", refused.Header().Get("X-RateLimit-Remaining"))
	require.Equal(t, "1", refused.Header().Get("Retry-After"), "a token a second")
	require.Equal(t, http.StatusOK, ask(r, "HEAD", "/play").Code, "looking is free when it is empty, too")

	require.Equal(t, "99", ask(r, "GET", "/ping").Header().Get("X-RateLimit-Remaining"), "other routes keep their tokens")
}

func TestRedisIsSwitched(t *testing.T) {
	r, _ := application(t, "")
	status := func() string {
		response := ask(r, "GET", "/play")
		return response.Header().Get("X-RateLimit-Status")
	}
	for range 2 {
		require.JSONEq(t, `{"embedded": true, "running": true}`, ask(r, "GET", "/redis").Body.String())
		require.Empty(t, status())

		for range 2 { // to stop what is stopped is no error
			response := ask(r, "POST", "/redis/stop")
			require.Equal(t, http.StatusOK, response.Code)
			require.JSONEq(t, `{"embedded": true, "running": false}`, response.Body.String())
		}
		require.JSONEq(t, `{"embedded": true, "running": false}`, ask(r, "GET", "/redis").Body.String())
		require.Equal(t, "degraded", status())

		for range 2 {
			response := ask(r, "POST", "/redis/start")
			require.Equal(t, http.StatusOK, response.Code)
			require.JSONEq(t, `{"embedded": true, "running": true}`, response.Body.String())
		}
		require.Eventually(t, func() bool { return status() == "" }, time.Minute, 10*time.Millisecond)
	}
}

func TestRedisRemembersWhatItCounted(t *testing.T) {
	r, _ := application(t, "")
	for range 5 {
		ask(r, "POST", "/login")
	}
	ask(r, "POST", "/redis/stop")
	require.Equal(t, http.StatusOK, ask(r, "POST", "/login").Code, "by a bucket in the process")
	ask(r, "POST", "/redis/start")
	require.Eventually(t, func() bool {
		return ask(r, "HEAD", "/play").Header().Get("X-RateLimit-Status") == ""
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, http.StatusTooManyRequests, ask(r, "POST", "/login").Code)
}

func TestManySwitchAtOnce(t *testing.T) {
	r, own := application(t, "")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { ask(r, "POST", "/redis/stop") })
		all.Go(func() { ask(r, "POST", "/redis/start") })
		all.Go(func() { ask(r, "GET", "/play") })
	}
	all.Wait()
	require.JSONEq(t, `{"embedded": true, "running": true}`, ask(r, "POST", "/redis/start").Body.String())
	require.NoError(t, own.Set("key", "value"))
	own.Close()
	own.Close() // as when the application ends while it is stopped
}

func TestPortThatIsTakenKeepsRedisStopped(t *testing.T) {
	r, own := application(t, "")
	address := own.Addr()
	ask(r, "POST", "/redis/stop")
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	require.JSONEq(t, `{"embedded": true, "running": false}`, ask(r, "POST", "/redis/start").Body.String())
	require.NoError(t, listener.Close())
	require.JSONEq(t, `{"embedded": true, "running": true}`, ask(r, "POST", "/redis/start").Body.String())
}

func TestServerIsNotSwitched(t *testing.T) {
	r, own := application(t, "redis://127.0.0.1:1")
	require.Nil(t, own)
	require.JSONEq(t, `{"embedded": false, "running": false}`, ask(r, "GET", "/redis").Body.String())
	require.Equal(t, http.StatusNotFound, ask(r, "POST", "/redis/stop").Code)
	require.Equal(t, http.StatusNotFound, ask(r, "POST", "/redis/start").Code)
	require.Equal(t, http.StatusOK, ask(r, "GET", "/").Code)
}

func TestOtherSitesDoNotSwitch(t *testing.T) {
	r, _ := application(t, "")
	for _, fields := range [][]string{
		{"Origin", "https://example.net"},
		{"Origin", "null"},
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"}, // another port of this machine
	} {
		require.Equal(t, http.StatusForbidden, ask(r, "POST", "/redis/stop", fields...).Code, fields)
	}
	require.Equal(t, http.StatusNotFound, ask(r, "GET", "/redis/stop").Code, "a link does not")
	require.JSONEq(t, `{"embedded": true, "running": true}`, ask(r, "GET", "/redis").Body.String())
	require.Equal(t, http.StatusOK, ask(r, "POST", "/redis/stop",
		"Sec-Fetch-Site", "same-origin", "Origin", "http://example.com").Code)
}
