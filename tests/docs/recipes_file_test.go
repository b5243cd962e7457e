package docs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Limits in a file.

func limitsFileRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	var current atomic.Pointer[map[string][]ginlimit.Limit]
	load := func() error {
		var limits map[string][]ginlimit.Limit
		text, err := os.ReadFile("limits.json") // {"things": ["100/m", "2000/h"], "export": ["unlimited"]}
		if err == nil {
			err = json.Unmarshal(text, &limits)
		}
		check, _ := ginlimit.NewLocal()
		defer check.Close()
		for _, name := range []string{"things", "export"} {
			if err == nil { // give it the policy's other options too
				if _, err = check.Policy(name, ginlimit.WithLimits(limits[name]...)); err != nil {
					err = fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		if err == nil {
			current.Store(&limits)
		}
		return err
	}
	if err := load(); err != nil {
		log.Fatal(err)
	}
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGHUP)
	go func() {
		for range changed { // or a ticker, as for a ConfigMap
			if err := load(); err != nil {
				log.Print("the old limits stay: ", err)
			}
		}
	}()
	limits := func(name string) ginlimit.PolicyOption {
		return ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
			return (*current.Load())[name], nil
		})
	}
	router.GET("/things", limiter.Handler("things", limits("things")), func(c *gin.Context) { c.Status(http.StatusOK) })
	router.GET("/export", limiter.Handler("export", limits("export")), func(c *gin.Context) { c.Status(http.StatusOK) })
}

// TestLimitsOfAFileChangeWhileRunning: a right file holds at once, also for a client that was denied, in each of two
// processes, and keeps the buckets. A wrong file changes nothing and is logged. It runs alone, as it has a folder, a
// log and a signal of the process.
func TestLimitsOfAFileChangeWhileRunning(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no SIGHUP")
	}
	t.Chdir(t.TempDir())
	var lines testkit.Buffer
	writer := log.Writer()
	log.SetOutput(&lines)
	defer log.SetOutput(writer)
	defer signal.Reset(syscall.SIGHUP)
	rdb, stop := testkit.ExampleRedis()
	defer stop()
	write := func(text string) { require.NoError(t, os.WriteFile("limits.json", []byte(text), 0o600)) }
	write(`{"things": ["3/h"], "export": ["unlimited"]}`)
	var processes []*gin.Engine
	for range 2 {
		router := signedIn()
		limitsFileRecipe(router, testkit.NewLimiter(t, rdb, ginlimit.WithTimeout(10*time.Second)).Limiter)
		processes = append(processes, router)
	}
	asked := 0
	things := func() *httptest.ResponseRecorder { // of each process in turn
		asked++
		return testkit.Get(processes[asked%len(processes)], "/things")
	}
	left := func(want ...string) {
		t.Helper()
		for _, want := range want {
			require.Equal(t, want, things().Header().Get("X-RateLimit-Remaining"))
		}
	}
	reload := func() {
		require.NoError(t, testkit.Must(os.FindProcess(os.Getpid())).Signal(syscall.SIGHUP))
	}
	left("2", "1", "0")
	require.Equal(t, http.StatusTooManyRequests, things().Code)
	require.Equal(t, http.StatusTooManyRequests, things().Code)

	for _, wrong := range []string{``, `{`, `null`, `{"things": ["9/h"]}`, `{"things": [], "export": ["1/h"]}`,
		`{"things": ["9/h"], "exports": ["unlimited"]}`, `{"things": ["9 per hour"], "export": ["unlimited"]}`,
		`{"things": ["9/h", "8/h"], "export": ["unlimited"]}`, `{"things": [""], "export": ["unlimited"]}`,
		`{"things": "9/h", "export": "unlimited"}`, `{"things": ["9/h"], "export": ["unlimited"]}}`} {
		write(wrong)
		before := strings.Count(lines.String(), "the old limits stay: ")
		reload()
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			return strings.Count(lines.String(), "the old limits stay: ") == before+len(processes)
		}), wrong)
		require.Equal(t, http.StatusTooManyRequests, things().Code, wrong)
		require.Equal(t, "3", things().Header().Get("X-RateLimit-Limit"), wrong)
		require.Equal(t, http.StatusOK, testkit.Get(processes[0], "/export").Code)
	}
	require.NoError(t, os.Remove("limits.json"))
	reload()
	require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		return strings.Contains(lines.String(), "no such file")
	}))

	write(`{"things": ["unlimited"], "export": ["prohibited"]}`)
	reload()
	for _, router := range processes {
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			return testkit.Get(router, "/export").Code == http.StatusTooManyRequests
		}))
		require.Equal(t, http.StatusOK, testkit.Get(router, "/things").Code)
	}
	write(`{"things": ["30/h"], "export": ["10/h", "20/m"]}`)
	reload()
	for _, router := range processes {
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			return testkit.Get(router, "/export").Code == http.StatusOK
		}))
	}
	require.Less(t, testkit.Must(strconv.Atoi(things().Header().Get("X-RateLimit-Remaining"))), 3, "the bucket stays")
}
