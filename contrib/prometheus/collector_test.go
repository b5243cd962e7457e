package ginlimitprom_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	ginlimitprom "github.com/ginlimit/ginlimit/contrib/prometheus"
)

// application is a Gin engine whose metrics are served at /metrics.
func application(t *testing.T) (*gin.Engine, *miniredis.Miniredis) {
	gin.SetMode(gin.TestMode)
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })

	metrics := ginlimitprom.New()
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithObserver(metrics.Observe),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler)), ginlimit.WithTimeout(5*time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	metrics.Watch(limiter)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(metrics))

	r := gin.New()
	require.NoError(t, r.SetTrustedProxies(nil))
	r.GET("/metrics", gin.WrapH(promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})))
	ok := func(c *gin.Context) { c.Status(http.StatusOK) }
	r.GET("/search", limiter.Handler(ginlimit.PerHour(3), ginlimit.WithName("search")), ok)
	r.GET("/free", limiter.Handler(ginlimit.PerHour(-1), ginlimit.WithName("free")), ok)
	return r, mini
}

func get(r http.Handler, path string) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	r.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
	return rec
}

// scraped returns the value of every metric that a scrape shows, by its name and labels.
func scraped(t *testing.T, r http.Handler) map[string]string {
	rec := get(r, "/metrics")
	require.Equal(t, http.StatusOK, rec.Code)
	body, err := io.ReadAll(rec.Body)
	require.NoError(t, err)
	values := map[string]string{}
	for line := range strings.Lines(string(body)) {
		if metric, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			values[metric] = value
		}
	}
	return values
}

func TestMetricsFollowTheConventions(t *testing.T) {
	metrics := ginlimitprom.New()
	metrics.Observe(t.Context(), ginlimit.Event{Name: "search"})
	problems, err := testutil.CollectAndLint(metrics)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestScrapeShowsKnownTraffic(t *testing.T) {
	r, mini := application(t)
	for range 5 {
		get(r, "/search")
	}
	for range 2 {
		get(r, "/free")
	}
	require.Eventually(t, func() bool { return scraped(t, r)["ginlimit_batches_in_flight"] == "0" }, 10*time.Second, time.Millisecond)
	values := scraped(t, r)
	for metric, want := range map[string]string{
		`ginlimit_decisions_total{allowed="true",name="search",outcome="allowed"}`:  "3",
		`ginlimit_decisions_total{allowed="false",name="search",outcome="refused"}`: "2",
		`ginlimit_decisions_total{allowed="true",name="free",outcome="allowed"}`:    "2",
		`ginlimit_decision_duration_seconds_count{name="search"}`:                   "5",
		`ginlimit_redis_servers`:           "1",
		`ginlimit_redis_servers_lost`:      "0",
		`ginlimit_batched_decisions_total`: "5",
		`ginlimit_batches_total`:           "5",
		`ginlimit_queued_decisions`:        "0",
		`ginlimit_slots`:                   "0",
		`ginlimit_bans`:                    "0",
		`ginlimit_leases`:                  "0",
		`ginlimit_leased_decisions_total`:  "0",
		`ginlimit_remembered_refusals`:     "1",
		`ginlimit_local_buckets`:           "0",
	} {
		assert.Equal(t, want, values[metric], metric)
	}

	mini.Close()
	require.Eventually(t, func() bool {
		get(r, "/search")
		return scraped(t, r)["ginlimit_redis_servers_lost"] == "1"
	}, 10*time.Second, time.Millisecond)
	values = scraped(t, r)
	assert.NotEmpty(t, values[`ginlimit_decisions_total{allowed="true",name="search",outcome="local"}`])
	assert.Equal(t, "1", values["ginlimit_local_buckets"])
}

// TestNamesInDashboardAndAlertsExist, and every metric is on the dashboard.
func TestNamesInDashboardAndAlertsExist(t *testing.T) {
	descs := make(chan *prometheus.Desc, 100)
	ginlimitprom.New().Describe(descs)
	close(descs)
	var known []string
	name := regexp.MustCompile(`ginlimit_[a-z_]+`)
	for desc := range descs {
		known = append(known, name.FindString(desc.String()))
	}
	require.Len(t, known, 14)
	used := func(file string) (names []string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, n := range name.FindAllString(string(text), -1) {
			n = strings.TrimSuffix(n, "_bucket")
			assert.Contains(t, known, n, file)
			names = append(names, n)
		}
		return names
	}
	dashboard := used("dashboard.json")
	for _, n := range known {
		assert.True(t, slices.Contains(dashboard, n), "%s is not on the dashboard", n)
	}
	assert.NotEmpty(t, used("alerts.yml"))
	outcomes := regexp.MustCompile(`outcome[!=]~?\\?"([a-z_|]+)`)
	text, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	for _, match := range outcomes.FindAllStringSubmatch(string(text), -1) {
		for outcome := range strings.SplitSeq(match[1], "|") {
			assert.True(t, isOutcome(outcome), outcome)
		}
	}
	var board map[string]any
	text, err = os.ReadFile("dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &board))
}

// TestExpressionsParse has promtool read the alert rules, and the dashboard's expressions as rules.
func TestExpressionsParse(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			require.NoError(t, err)
		}
		t.Skip("promtool is missing: apt-get install prometheus")
	}
	text, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &board))
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	n := 0
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$name", ".*")
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			n++
			expr, err := json.Marshal(variables.Replace(target.Expr))
			require.NoError(t, err)
			fmt.Fprintf(&rules, "  - record: panel:%d\n    expr: %s\n", n, expr)
		}
	}
	require.Greater(t, n, 8)
	dashboard := filepath.Join(t.TempDir(), "dashboard.yml")
	require.NoError(t, os.WriteFile(dashboard, []byte(rules.String()), 0o600))
	out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yml", dashboard).CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestNamesThatAreNoTextAndLimitersWatchedTwice(t *testing.T) {
	limiter, err := ginlimit.NewLocal()
	require.NoError(t, err)
	_, err = limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))
	require.NoError(t, err)
	metrics := ginlimitprom.New()
	metrics.Watch(limiter, nil)
	metrics.Watch(limiter)
	metrics.Observe(t.Context(), ginlimit.Event{Name: "\xff"})
	require.NoError(t, testutil.CollectAndCompare(metrics, strings.NewReader(`
# HELP ginlimit_local_buckets Buckets in the process, which decide without Redis, full ones that are not forgotten yet among them.
# TYPE ginlimit_local_buckets gauge
ginlimit_local_buckets 1
`), "ginlimit_local_buckets"))
}

func isOutcome(name string) bool {
	for o := ginlimit.OutcomeAllowed; o.String() != "unknown"; o++ {
		if o.String() == name {
			return true
		}
	}
	return false
}

func TestReadmeNamesEveryMetricAndOutcome(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	descs := make(chan *prometheus.Desc, 100)
	ginlimitprom.New().Describe(descs)
	close(descs)
	var described, named []string
	for desc := range descs {
		described = append(described, regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(desc.String())[1])
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(ginlimit_\\w+)`").FindAllStringSubmatch(string(text), -1) {
		named = append(named, m[1])
	}
	assert.ElementsMatch(t, described, named)
	for o := range ginlimit.OutcomeError + 1 {
		assert.Contains(t, string(text), "`"+o.String()+"`")
	}
}
