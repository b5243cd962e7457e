package ginlimitprom_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	ginlimitprom "github.com/ginlimit/ginlimit/contrib/prometheus"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// busyApplication is an application that has something of every metric, with a client that sends
// requests until the test ends.
func busyApplication(t *testing.T, rdb *redis.Client) *httptest.Server {
	gin.SetMode(gin.TestMode)
	quiet, metrics := ginlimit.WithLogger(slog.New(slog.DiscardHandler)), ginlimitprom.New()
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithObserver(metrics.Observe), quiet)
	require.NoError(t, err)
	plans, err := limiter.NewPlans("plans", time.Second, func(_ context.Context, client string) ([]ginlimit.Limit, error) {
		if client == "stranger" {
			return nil, errors.New("down")
		}
		return []ginlimit.Limit{ginlimit.PerHour(1000)}, nil
	})
	require.NoError(t, err)
	metrics.Watch(limiter)
	metrics.WatchPlans(plans)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(metrics))

	r := gin.New()
	require.NoError(t, r.SetTrustedProxies(nil))
	r.GET("/metrics",
		gin.WrapH(promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})))
	user := ginlimit.WithKey(ginlimit.ByHeader("X-User"))
	r.GET("/login", limiter.Handler("login", ginlimit.PerHour(3),
		ginlimit.WithBan(time.Second, time.Minute)))
	r.GET("/trial", limiter.Handler("trial", ginlimit.PerHour(3), ginlimit.WithDryRun()))
	r.GET("/hot", limiter.Handler("hot", ginlimit.PerMinute(100_000), ginlimit.WithLease(time.Second)))
	r.GET("/slots", limiter.Handler("slots", ginlimit.PerHour(1000), ginlimit.InFlight(2)))
	r.GET("/plan", limiter.Handler("plan", user,
		ginlimit.WithLimitFunc(plans.Limits)))
	server := httptest.NewServer(r)
	worker, err := limiter.Policy("worker", ginlimit.PerSecond(20).WithBurst(1))
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			_ = worker.Wait(ctx, "partner")
		}
	})
	all.Go(func() {
		for ctx.Err() == nil {
			for _, path := range []string{"/login", "/trial", "/hot", "/slots", "/plan"} {
				get(r, path)
			}
			for _, client := range []string{"known", "stranger"} {
				rec, req := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/plan", nil)
				req.Header.Set("X-User", client)
				r.ServeHTTP(rec, req)
			}
		}
	})
	t.Cleanup(func() {
		stop()
		all.Wait()
		server.Close()
		assert.NoError(t, limiter.Close())
	})
	return server
}

// startPrometheus starts a Prometheus that scrapes a server, with the alert rules in a time that
// runs thirty times as fast, and returns its address.
func startPrometheus(t *testing.T, target *httptest.Server) string {
	program, folder, addr := testkit.Need(t, "prometheus"), t.TempDir(), "127.0.0.1:"+testkit.FreePort(t)
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	rules = regexp.MustCompile(`\b\d+m\b`).ReplaceAllFunc(rules, func(span []byte) []byte {
		minutes, err := strconv.Atoi(string(span[:len(span)-1]))
		require.NoError(t, err)
		return fmt.Appendf(nil, "%ds", 2*minutes)
	})
	require.NoError(t, os.WriteFile(filepath.Join(folder, "alerts.yml"), rules, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "prometheus.yml"), fmt.Appendf(nil, `
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}
rule_files: [alerts.yml]
scrape_configs: [{job_name: api, static_configs: [{targets: [%q]}]}]
`, target.Listener.Addr()), 0o600))
	log, err := os.Create(filepath.Join(folder, "log"))
	require.NoError(t, err)
	cmd := exec.Command(program, "--config.file", filepath.Join(folder, "prometheus.yml"),
		"--storage.tsdb.path", filepath.Join(folder, "data"),
		"--web.listen-address", addr)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	if !testkit.BecomesTrue(t.Context().Done(), func() bool {
		response, err := http.Get("http://" + addr + "/-/ready")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	}) {
		text, _ := os.ReadFile(log.Name())
		require.Fail(t, "prometheus does not start", string(text))
	}
	return addr
}

// call calls Prometheus' API.
func call(t *testing.T, addr, path string, query url.Values, data any) {
	response, err := http.Get("http://" + addr + path + "?" + query.Encode())
	require.NoError(t, err)
	defer response.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&answer))
	require.Equal(t, "success", answer.Status, "%s %s: %s", path, query, answer.Error)
}

// TestOutageInPrometheus has a real Prometheus scrape a real application whose Redis is killed.
func TestOutageInPrometheus(t *testing.T) {
	testkit.Nightly(t, "needs Prometheus")
	redisAddr, process := testkit.StartRedisProcess(t)
	addr := startPrometheus(t, busyApplication(t, testkit.ConnectDirect(t, redisAddr)))
	type alert struct {
		State  string
		Labels map[string]string
	}
	alerts := func() (pages []string) {
		var data struct{ Alerts []alert }
		call(t, addr, "/api/v1/alerts", nil, &data)
		for _, a := range data.Alerts {
			if a.Labels["severity"] == "page" {
				pages = append(pages, a.Labels["alertname"]+" "+a.State)
			}
		}
		return pages
	}
	query := func(expr string) (n int) {
		var data struct{ Result []any }
		call(t, addr, "/api/v1/query", url.Values{"query": {expr}}, &data)
		return len(data.Result)
	}
	becomes := func(condition func() bool, text ...any) {
		t.Helper()
		require.True(t, testkit.BecomesTrue(t.Context().Done(), condition), text...)
	}
	const rate = `rate(ginlimit_decision_duration_seconds_count{source="redis"}[4s])`
	becomes(func() bool { return query(rate+" > 0") > 0 }, "decisions of Redis")
	require.Empty(t, alerts())

	require.NoError(t, process.Kill())
	becomes(func() bool {
		for _, a := range alerts() {
			if a == "GinlimitRedisUnavailable pending" {
				return true
			}
		}
		return false
	}, "pending")
	becomes(func() bool {
		for _, a := range alerts() {
			require.NotEqual(t, "GinlimitDecisionsWithoutRedis firing", a, "one page for an outage")
			if a == "GinlimitRedisUnavailable firing" {
				return true
			}
		}
		return false
	}, "firing")
	for _, expr := range expressions(t, "20s") {
		becomes(func() bool { return query(expr) > 0 }, "no data of "+expr)
	}
	becomes(func() bool {
		return query(`ginlimit_breaker_transitions_total{to="open", reason="connection_refused"} == 1`) == 1
	}, "the reason")

	require.NotNil(t, testkit.LaunchRedis(t, redisAddr))
	becomes(func() bool { return len(alerts()) == 0 }, "Redis is back")
	becomes(func() bool { return query(`ginlimit_breaker_transitions_total{to="closed"} == 1`) == 1 }, "closed")
}
