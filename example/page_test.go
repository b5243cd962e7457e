package main

import (
	"encoding/json"
	"go/parser"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// application returns the routes of the first process, and the playground with both.
func application(t *testing.T, url string) (*gin.Engine, *playground) {
	t.Helper()
	connect, own, err := connector(url)
	require.NoError(t, err)
	if own != nil {
		t.Cleanup(own.Close)
	}
	p := playgroundOn(t, own, func() *redis.Client {
		rdb := connect()
		options := *rdb.Options()
		require.NoError(t, rdb.Close())
		// a Redis that is stopped is not tried again, which would take half a second
		options.DialerRetries, options.MaxRetries = 1, -1
		rdb = redis.NewClient(&options)
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	})
	return p.processes[0].handler, p
}

// playgroundOn returns two processes, each with a client of its own.
func playgroundOn(t *testing.T, own *ownRedis, connect func() *redis.Client) *playground {
	t.Helper()
	p := &playground{redis: own}
	for i := range p.processes {
		limiter, err := newLimiter(connect(), ginlimit.WithTimeout(time.Minute)) // of a slow machine
		require.NoError(t, err)
		t.Cleanup(func() { _ = limiter.Close() })
		p.processes[i] = testkit.Must(newProcess(limiter))
	}
	p.processes[1].port = "8081"
	addPage(p.processes[0].handler, p)
	return p
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

// play calls the page's API, and returns what it answers.
func play(t *testing.T, r http.Handler, method, path, limit, rest string) (view playView) {
	t.Helper()
	response := ask(r, method, path+"?limit="+url.QueryEscape(limit)+rest)
	require.Equal(t, http.StatusOK, response.Code, response.Body)
	require.Equal(t, "no-store", response.Header().Get("Cache-Control"))
	require.NoError(t, json.Unmarshal(response.Body.Bytes(), &view))
	return view
}

func TestPageIsOfThisServerOnly(t *testing.T) {
	r, _ := application(t, "")
	files := map[string]string{"/": "text/html; charset=utf-8", "/page.css": "text/css; charset=utf-8",
		"/page.js": "text/javascript; charset=utf-8", "/shares.js": "text/javascript; charset=utf-8"}
	size := 0
	for path, contentType := range files {
		response := ask(r, "GET", path)
		require.Equal(t, http.StatusOK, response.Code)
		require.Equal(t, contentType, response.Header().Get("Content-Type"))
		require.Contains(t, response.Header().Get("Content-Security-Policy"), "default-src 'none'")
		require.NotContains(t, response.Header().Get("Content-Security-Policy"), "unsafe")
		require.Empty(t, response.Header().Get("X-RateLimit-Limit"), "to look at it costs nothing")

		text := response.Body.String()
		for _, link := range regexp.MustCompile(`(?:src|href)=["']?([^"'> ]*)`).FindAllStringSubmatch(text, -1) {
			assert.True(t, files["/"+link[1]] != "" || strings.HasPrefix(link[1], "data:"), link[0])
		}
		for _, link := range regexp.MustCompile(`url\(([^)]*)\)`).FindAllStringSubmatch(text, -1) {
			assert.True(t, strings.HasPrefix(link[1], "#"), link[0])
		}
		assert.NotContains(t, text, "@import")
		size += len(text)
	}
	assert.Less(t, size, 64<<10, "small")
}

// A limit that regains nothing worth counting while a test runs.
const slow = "5/m"

func TestSameRequestsGoToAllAlgorithms(t *testing.T) {
	r, _ := application(t, "")
	view := play(t, r, "GET", "/play", slow+" burst 8", "")
	for i, limit := range []string{"5/m burst 8", "5/m fixed-window", "5/m sliding-window"} {
		require.Equal(t, algorithms[i].name, view.Lanes[i].Name)
		require.Equal(t, limit, view.Lanes[i].Limit)
		require.Nil(t, view.Lanes[i].Answer)
	}
	require.Equal(t, redisView{Embedded: true, Running: true}, view.Redis)
	require.Equal(t, "8081", view.Port)

	begun := time.Now()
	view = play(t, r, "POST", "/play", slow+" burst 8", "&n=20&via=0")
	took := time.Since(begun)
	for i, admitted := range []int{8, 5, 5} {
		answer := view.Lanes[i].Answer
		require.InDelta(t, admitted, answer.Admitted, took.Minutes()*5, "burst + rate × t")
		require.Equal(t, 20, answer.Admitted+answer.Denied)
		require.Equal(t, http.StatusTooManyRequests, answer.Status)
		require.NotEmpty(t, answer.Header.Get("Retry-After"))
		require.Equal(t, "0", answer.Header.Get("X-RateLimit-Remaining"))
		require.False(t, answer.Local)
	}
}

func TestProcessesShareTheirTokens(t *testing.T) {
	r, p := application(t, "")
	for _, via := range []string{"0", "1"} {
		for i := range algorithms {
			require.Equal(t, 2, play(t, r, "POST", "/play", slow, "&n=2&via="+via).Lanes[i].Answer.Admitted)
			view := play(t, r, "GET", "/play", slow, "")
			for process := range replicas {
				seen := view.Processes[process][i]
				require.Equal(t, 3, seen.Remaining)
				require.Equal(t, 5, seen.Limit)
				require.EqualValues(t, time.Minute.Milliseconds(), seen.Period)
				require.InDelta(t, 5/60.0, seen.PerSecond, 1e-9)
				require.Zero(t, seen.Retry)
				require.Positive(t, seen.Reset)
				require.False(t, seen.Local)
			}
			view = play(t, r, "POST", "/play/reset", slow, "")
			require.Equal(t, 5, view.Processes[1][i].Remaining)
		}
	}

	play(t, r, "POST", "/play", slow, "&n=4&via=0")
	for _, algorithm := range []string{"", "&algorithm=token-bucket", "&algorithm=fixed-window",
		"&algorithm=sliding-window"} {
		response := ask(p.processes[1].handler, "GET", "/try?limit=5/m"+algorithm)
		if algorithm == "&algorithm=token-bucket" {
			require.Equal(t, http.StatusTooManyRequests, response.Code, "the default is the same bucket")
		} else {
			require.Equal(t, http.StatusOK, response.Code, algorithm)
			require.Equal(t, "admitted\n", response.Body.String())
		}
		require.Equal(t, "0", response.Header().Get("X-RateLimit-Remaining"))
	}
	for i := range algorithms {
		seen := play(t, r, "GET", "/play", slow, "").Processes[0][i]
		require.Zero(t, seen.Remaining)
		require.Positive(t, seen.Retry)
	}
	require.Equal(t, "99", ask(r, "GET", "/ping").Header().Get("X-RateLimit-Remaining"), "other routes keep their tokens")
}

func TestOthersChooseNoBucket(t *testing.T) {
	r, _ := application(t, "")
	play(t, r, "POST", "/play", slow, "&n=5&via=0")
	response := ask(r, "GET", "/try?limit=5/m", "X-Forwarded-For", "192.0.2.77")
	require.Equal(t, http.StatusTooManyRequests, response.Code)
}

func TestHostileInput(t *testing.T) {
	r, p := application(t, "")
	limits := []string{
		"", "x", "5", "5/", "/s", "0/s", "-1/s", "101/s", "1/500ms", "1/1500ms", "1/61s",
		"1/2m", "1/d", "5/s burst 0", "5/s burst 101", "5/month",
		"9223372036854775807/s", "5/s burst 9223372036854775807", "5/2562047h47m16s",
		"5/s from 1", "<script>/s", "5/s\r\nX: y", strings.Repeat("9", 1<<12),
	}
	for _, limit := range limits {
		for method, path := range map[string]string{"GET": "/play", "POST": "/play", "POST ": "/play/reset", "GET ": "/try"} {
			response := ask(r, strings.TrimSpace(method), path+"?n=1&via=0&limit="+url.QueryEscape(limit))
			require.Equal(t, http.StatusBadRequest, response.Code, "%s %s", path, limit)
			require.Equal(t, errLimit, response.Body.String(), "it repeats nothing of the request")
			require.Contains(t, response.Header().Get("Content-Type"), "text/plain")
		}
	}
	for text, addresses := range map[string][]string{
		"n: want a whole number from 1 to 100\n": {"/play?limit=5/s&via=0&n=", "/play?limit=5/s&via=0&n=0",
			"/play?limit=5/s&via=0&n=101", "/play?limit=5/s&via=0&n=1e1", "/play?limit=5/s&via=0&n=9223372036854775808"},
		"via: want 0 or 1\n": {"/play?limit=5/s&n=1&via=", "/play?limit=5/s&n=1&via=-1", "/play?limit=5/s&n=1&via=2"},
		"algorithm: want one of token-bucket, fixed-window, sliding-window\n": {"/try?limit=5/s&algorithm=x",
			"/try?limit=5/s&algorithm=TokenBucket", "/try?limit=5/s&algorithm=token-bucket%00"},
	} {
		for _, address := range addresses {
			method := map[bool]string{true: "GET", false: "POST"}[strings.HasPrefix(address, "/try")]
			response := ask(r, method, address)
			require.Equal(t, http.StatusBadRequest, response.Code, address)
			require.Equal(t, text, response.Body.String(), address)
		}
	}
	require.Empty(t, p.redis.Keys(), "nothing was counted")
	for _, limit := range []string{"1/s", "100/m burst 100", "100/60s burst 1", "7/1m0s", "10/sec"} {
		play(t, r, "GET", "/play", limit, "")
	}
}

func TestCodeMakesTheLimit(t *testing.T) {
	for text, want := range map[string]string{
		"10/s":          "ginlimit.PerSecond(10)",
		"10/s burst 20": "ginlimit.PerSecond(10).WithBurst(20)",
		"3/m burst 1":   "ginlimit.PerMinute(3).WithBurst(1)",
		"5/15s":         "ginlimit.Per(5, 15*time.Second)",
		"5/2s burst 9":  "ginlimit.Per(5, 2*time.Second).WithBurst(9)",
	} {
		limit, ok := parseLimit(text)
		require.True(t, ok)
		for _, a := range algorithms {
			line := code(limit, a.code)
			require.Equal(t, "router.Use(limiter.Handler(\"all\", "+want+a.code+"))", line)
			testkit.Must(parser.ParseExpr(line))
		}
	}
}

func TestRedisIsSwitched(t *testing.T) {
	r, _ := application(t, "")
	look := func() playView { return play(t, r, "GET", "/play", "5/m burst 8", "") }
	local := func() bool { return look().Processes[0][0].Local || look().Processes[1][0].Local }
	for range 2 {
		require.Equal(t, redisView{Embedded: true, Running: true}, look().Redis)
		require.False(t, local())

		for range 2 { // to stop what is stopped is no error
			response := ask(r, "POST", "/redis/stop")
			require.Equal(t, http.StatusOK, response.Code)
			require.JSONEq(t, `{"embedded": true, "running": false}`, response.Body.String())
		}
		view := play(t, r, "POST", "/play", "5/m burst 8", "&n=1&via=1")
		require.Equal(t, redisView{Embedded: true}, view.Redis)
		for i, share := range []int{4, 2, 2} { // of 8 and 5 and 5, rounded down
			require.True(t, view.Lanes[i].Answer.Local)
			require.Equal(t, "degraded", view.Lanes[i].Answer.Header.Get("X-RateLimit-Status"))
			for process := range replicas {
				seen := view.Processes[process][i]
				require.True(t, seen.Local)
				require.Equal(t, share, seen.Limit)
				require.InDelta(t, 2/60.0, seen.PerSecond, 1e-9)
			}
			require.Equal(t, share, view.Processes[0][i].Remaining, "the other process does not know of it")
			require.Less(t, view.Processes[1][i].Remaining, share)
		}

		for range 2 {
			response := ask(r, "POST", "/redis/start")
			require.Equal(t, http.StatusOK, response.Code)
			require.JSONEq(t, `{"embedded": true, "running": true}`, response.Body.String())
		}
		require.Eventually(t, func() bool { return !local() }, time.Minute, 10*time.Millisecond)
	}
}

func TestResetWithoutRedis(t *testing.T) {
	r, _ := application(t, "")
	ask(r, "POST", "/redis/stop")
	response := ask(r, "POST", "/play/reset?limit=5/m")
	require.Equal(t, http.StatusServiceUnavailable, response.Code)
	require.Equal(t, "the buckets cannot be reset without Redis\n", response.Body.String())
}

func TestServerIsNotSwitched(t *testing.T) {
	r, p := application(t, "redis://127.0.0.1:1")
	require.Nil(t, p.redis)
	require.Equal(t, redisView{}, play(t, r, "GET", "/play", slow, "").Redis)
	require.Equal(t, http.StatusNotFound, ask(r, "POST", "/redis/stop").Code)
	require.Equal(t, http.StatusNotFound, ask(r, "POST", "/redis/start").Code)
	require.Equal(t, http.StatusOK, ask(r, "GET", "/").Code)
}

func TestOtherSitesDoNotPlay(t *testing.T) {
	r, _ := application(t, "")
	for _, fields := range [][]string{
		{"Origin", "https://example.net"},
		{"Origin", "null"},
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"}, // another port of this machine
	} {
		for _, path := range []string{"/redis/stop", "/redis/start", "/play?limit=5/m&n=1&via=0",
			"/play/reset?limit=5/m", "/play/shares?" + sharesQuery("0", [3]int{1, 1, 1}, [3]string{"1", "1", "1"})} {
			require.Equal(t, http.StatusForbidden, ask(r, "POST", path, fields...).Code, fields)
		}
	}
	require.Equal(t, http.StatusNotFound, ask(r, "GET", "/redis/stop").Code, "a link does not")
	require.Equal(t, redisView{Embedded: true, Running: true}, play(t, r, "GET", "/play", slow, "").Redis)
	require.Equal(t, http.StatusOK, ask(r, "POST", "/redis/stop",
		"Sec-Fetch-Site", "same-origin", "Origin", "http://example.com").Code)
}
