package ginlimitprom_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// application is a Gin engine whose metrics are served at /metrics.
func application(t *testing.T) (*gin.Engine, *miniredis.Miniredis) {
	gin.SetMode(gin.TestMode)
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })

	metrics := ginlimitprom.New()
	limiter := testkit.Must(ginlimit.NewLimiter(rdb, ginlimit.WithObserver(metrics.Observe),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler)), ginlimit.WithTimeout(5*time.Second),
		ginlimit.WithReplicas(1)))
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	metrics.Watch(limiter)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(metrics))

	r := gin.New()
	require.NoError(t, r.SetTrustedProxies(nil))
	r.GET("/metrics",
		gin.WrapH(promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})))
	ok := func(c *gin.Context) { c.Status(http.StatusOK) }
	r.GET("/search", limiter.Handler("search", ginlimit.PerHour(3)), ok)
	r.GET("/free", limiter.Handler("free", ginlimit.PerHour(-1)), ok)
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
	body := testkit.Must(io.ReadAll(rec.Body))
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
	require.Empty(t, testkit.Must(testutil.CollectAndLint(metrics)))
}

func TestScrapeShowsKnownTraffic(t *testing.T) {
	r, mini := application(t)
	for range 4 {
		get(r, "/search")
	}
	for range 2 {
		get(r, "/free")
	}
	require.Eventually(t, func() bool {
		return scraped(t, r)["ginlimit_batches_in_flight"] == "0"
	}, time.Minute, time.Millisecond)
	values := scraped(t, r)
	for metric, want := range map[string]string{
		`ginlimit_decisions_total{cause="",dry_run="false",name="search",outcome="allowed",source="redis"}`:    "3",
		`ginlimit_decisions_total{cause="rate",dry_run="false",name="search",outcome="denied",source="redis"}`: "1",
		`ginlimit_decisions_total{cause="",dry_run="false",name="free",outcome="allowed",source="policy"}`:     "2",
		`ginlimit_decision_duration_seconds_count{name="search",source="redis"}`:                               "4",
		`ginlimit_decision_duration_seconds_count{name="free",source="policy"}`:                                "2",
		`ginlimit_breaker_transitions_total{reason="",to="closed"}`:                                            "0",
		`ginlimit_redis_servers`:           "1",
		`ginlimit_redis_servers_lost`:      "0",
		`ginlimit_batched_decisions_total`: "4",
		`ginlimit_batches_total`:           "4",
		`ginlimit_queued_decisions`:        "0",
		`ginlimit_slots`:                   "0",
		`ginlimit_replicas`:                "1",
		`ginlimit_bans`:                    "0",
		`ginlimit_overrides`:               "0",
		`ginlimit_leases`:                  "0",
		`ginlimit_leased_decisions_total`:  "0",
		`ginlimit_remembered_denials`:      "1",
		`ginlimit_local_buckets`:           "0",
	} {
		assert.Equal(t, want, values[metric], metric)
	}

	mini.Close()
	require.Eventually(t, func() bool {
		get(r, "/search")
		return scraped(t, r)["ginlimit_redis_servers_lost"] == "1"
	}, time.Minute, time.Millisecond)
	values = scraped(t, r)
	assert.NotEmpty(t, values[`ginlimit_decisions_total{cause="",dry_run="false",name="search",`+
		`outcome="allowed",source="local"}`])
	assert.Equal(t, "1", values["ginlimit_local_buckets"])
	assert.NotEmpty(t, values[`ginlimit_decision_duration_seconds_count{name="search",source="local"}`])
	assert.NotEmpty(t, values[`ginlimit_errors_total{name="search",reason="connection_refused"}`])
	require.Eventually(t, func() bool {
		return scraped(t, r)[`ginlimit_breaker_transitions_total{reason="connection_refused",to="open"}`] == "1"
	}, time.Minute, time.Millisecond)
}

func TestWaitsAreApartFromDecisions(t *testing.T) {
	values := observed(t,
		ginlimit.Event{Name: "worker", Duration: 7*time.Second + time.Millisecond, Waited: 7 * time.Second},
		ginlimit.Event{Name: "worker", Duration: time.Millisecond},
		ginlimit.Event{Name: "late", Source: ginlimit.FromLocal, Duration: 50 * time.Millisecond, Reason: "late"})
	for metric, want := range map[string]string{
		`ginlimit_wait_seconds_total{name="worker"}`:                                          "7",
		`ginlimit_decision_duration_seconds_bucket{name="worker",source="redis",le="0.0025"}`: "2",
		`ginlimit_decision_duration_seconds_bucket{name="late",source="local",le="0.025"}`:    "0",
		`ginlimit_decision_duration_seconds_bucket{name="late",source="local",le="0.05"}`:     "1",
	} {
		assert.Equal(t, want, values[metric], metric)
	}
	assert.NotContains(t, values, `ginlimit_wait_seconds_total{name="late"}`)
}

// TestWaitingCallersAreSummed over limiters, by policy, also under a name that is no label.
func TestWaitingCallersAreSummed(t *testing.T) {
	testkit.RunSynctest(t, "", func(t *testing.T) {
		metrics := ginlimitprom.New()
		ctx, leave := context.WithCancel(t.Context())
		for range 2 {
			l := testkit.NewLocal(t)
			metrics.Watch(l.Limiter)
			for _, name := range []string{"worker\xff", "idle"} {
				p := testkit.NewPolicy(t, l, name, ginlimit.PerHour(1))
				testkit.Must(p.Allow(ctx, "u"))
				if name != "idle" {
					go func() { _ = p.Wait(ctx, "u") }()
				}
			}
		}
		synctest.Wait()
		require.NoError(t, testutil.CollectAndCompare(metrics, strings.NewReader(`
# HELP ginlimit_waiting_callers Callers in the process that wait for tokens or a slot, by policy.
# TYPE ginlimit_waiting_callers gauge
ginlimit_waiting_callers{name="idle"} 0
ginlimit_waiting_callers{name="worker�"} 2
`), "ginlimit_waiting_callers"))
		leave()
		synctest.Wait()
	})
}

// observed returns the value of every metric after these events.
func observed(t *testing.T, events ...ginlimit.Event) map[string]string {
	metrics, registry := ginlimitprom.New(), prometheus.NewPedanticRegistry()
	for _, e := range events {
		metrics.Observe(t.Context(), e)
	}
	require.NoError(t, registry.Register(metrics))
	return scraped(t, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}

func TestPlansAreSummed(t *testing.T) {
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	metrics := ginlimitprom.New()
	metrics.WatchPlans(nil)
	require.Zero(t, testutil.CollectAndCount(metrics, "ginlimit_plan_lookups_total"), "of an application without plans")
	limiter := testkit.Must(ginlimit.NewLimiter(rdb, ginlimit.WithReplicas(1), ginlimit.WithTimeout(5*time.Second),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler))))
	t.Cleanup(func() { _ = limiter.Close() })
	for _, name := range []string{"a", "b"} {
		plans, err := limiter.NewPlans(name, time.Hour, func(_ context.Context, client string) ([]ginlimit.Limit, error) {
			if client == "stranger" {
				return nil, errors.New("down")
			}
			return []ginlimit.Limit{ginlimit.PerHour(5)}, nil
		})
		require.NoError(t, err)
		metrics.WatchPlans(plans, nil)
		metrics.WatchPlans(plans)
		for range 3 {
			_, err = plans.Limits(t.Context(), "client")
			require.NoError(t, err)
		}
		_, err = plans.Limits(t.Context(), "stranger")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable)
	}
	require.NoError(t, testutil.CollectAndCompare(metrics, strings.NewReader(`
# HELP ginlimit_plan_lookups_total Lookups of clients' plans, by result.
# TYPE ginlimit_plan_lookups_total counter
ginlimit_plan_lookups_total{result="error"} 2
ginlimit_plan_lookups_total{result="hit"} 4
ginlimit_plan_lookups_total{result="miss"} 2
ginlimit_plan_lookups_total{result="stale"} 0
`), "ginlimit_plan_lookups_total"))
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
	require.Len(t, known, 21)
	used := func(file string) (names []string) {
		text := testkit.Must(os.ReadFile(file))
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
	selected := regexp.MustCompile(`(outcome|source|cause|dry_run)!?=~?\\?"([a-z_|]+)`)
	for _, file := range []string{"dashboard.json", "alerts.yml", "alerts_test.yml"} {
		text := testkit.Must(os.ReadFile(file))
		matches := selected.FindAllStringSubmatch(string(text), -1)
		assert.NotEmpty(t, matches, file)
		for _, match := range matches {
			for word := range strings.SplitSeq(match[2], "|") {
				assert.Contains(t, words()[match[1]], word, "%s in %s", match[1], file)
			}
		}
		assert.NotContains(t, string(text), "allowed=", "of %s: a label that is gone", file)
	}
}

// words are the values of the labels that have a closed set, but the empty cause.
func words() map[string][]string {
	return map[string][]string{
		"outcome": named(ginlimit.OutcomeAllowed)[:ginlimit.OutcomeSettled],
		"source":  named(ginlimit.FromRedis), "cause": named(ginlimit.CauseRate),
		"dry_run": {"false", "true"},
	}
}

// named are the names of a type's values, from the first on.
func named[T interface {
	~uint8
	String() string
}](first T) (names []string) {
	for v := first; v.String() != "unknown"; v++ {
		names = append(names, v.String())
	}
	return names
}

// TestDecisionsAreCountedByWhatAnEventSays: each way to be decided has a series of its own.
func TestDecisionsAreCountedByWhatAnEventSays(t *testing.T) {
	t.Parallel()
	values := observed(t, []ginlimit.Event{
		{Name: "a", Outcome: ginlimit.OutcomeDenied, Source: ginlimit.FromCache, Cause: ginlimit.CauseRate},
		{Name: "a", Outcome: ginlimit.OutcomeDenied, Source: ginlimit.FromRedis, Cause: ginlimit.CauseInFlight},
		{Name: "a", Outcome: ginlimit.OutcomeDenied, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseList},
		{Name: "a", Outcome: ginlimit.OutcomeDenied, Source: ginlimit.FromRedis, Cause: ginlimit.CauseBan, DryRun: true},
		{Name: "a", Outcome: ginlimit.OutcomeAllowed, Source: ginlimit.FromOpen, Allowed: true, Reason: "late"},
		{Name: "a", Outcome: ginlimit.OutcomeAllowed, Source: ginlimit.FromLease, Allowed: true},
		{Name: "a", Outcome: ginlimit.OutcomeSkipped, Source: ginlimit.FromPolicy, Allowed: true},
		{Name: "a", Outcome: ginlimit.OutcomeFailed, Source: ginlimit.FromPolicy, Reason: "late"},
		{Name: "a", Outcome: ginlimit.OutcomeFailed, Source: ginlimit.FromPolicy, Reason: ginlimit.ReasonNoKey},
		{Name: "settled", Outcome: ginlimit.OutcomeSettled, Source: ginlimit.FromRedis, Allowed: true, Cost: 3},
	}...)
	for metric := range values {
		require.NotContains(t, metric, "settled", "a settlement is no decision")
	}
	got := map[string]string{}
	for metric, value := range values {
		if strings.HasPrefix(metric, "ginlimit_decisions_total{") || strings.HasPrefix(metric, "ginlimit_errors_total{") {
			got[metric] = value
		}
	}
	require.Equal(t, map[string]string{
		`ginlimit_decisions_total{cause="rate",dry_run="false",name="a",outcome="denied",source="cache"}`:      "1",
		`ginlimit_decisions_total{cause="in_flight",dry_run="false",name="a",outcome="denied",source="redis"}`: "1",
		`ginlimit_decisions_total{cause="list",dry_run="false",name="a",outcome="denied",source="policy"}`:     "1",
		`ginlimit_decisions_total{cause="ban",dry_run="true",name="a",outcome="denied",source="redis"}`:        "1",
		`ginlimit_decisions_total{cause="",dry_run="false",name="a",outcome="allowed",source="open"}`:          "1",
		`ginlimit_decisions_total{cause="",dry_run="false",name="a",outcome="allowed",source="lease"}`:         "1",
		`ginlimit_decisions_total{cause="",dry_run="false",name="a",outcome="skipped",source="policy"}`:        "1",
		`ginlimit_decisions_total{cause="",dry_run="false",name="a",outcome="failed",source="policy"}`:         "2",
		`ginlimit_errors_total{name="a",reason="late"}`:                                                        "2",
		`ginlimit_errors_total{name="a",reason="no_key"}`:                                                      "1",
	}, got)
}

func TestNamesThatAreNoTextAndLimitersWatchedTwice(t *testing.T) {
	limiter := testkit.Must(ginlimit.NewLocal())
	policy := testkit.Must(limiter.Policy("test", ginlimit.PerHour(1)))
	testkit.Must(policy.Allow(t.Context(), "k"))
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

func TestReadmeNamesEveryMetricAndLabel(t *testing.T) {
	t.Parallel()
	text := testkit.Must(os.ReadFile("README.md"))
	descs := make(chan *prometheus.Desc, 100)
	ginlimitprom.New().Describe(descs)
	close(descs)
	var described, named []string
	for desc := range descs {
		described = append(described, regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(desc.String())[1])
	}
	for _, m := range regexp.MustCompile("(?m)^- `(ginlimit_\\w+)`: ").FindAllStringSubmatch(string(text), -1) {
		named = append(named, m[1])
	}
	assert.ElementsMatch(t, described, named)
	for label, values := range words() {
		assert.Contains(t, string(text), "`"+label+"`")
		if label == "dry_run" {
			continue
		}
		_, line, _ := strings.Cut(string(text), "\n- `"+label+"` is ")
		line, _, _ = strings.Cut(line, "\n- ")
		for _, word := range values {
			assert.Contains(t, line, "`"+word+"`", label)
		}
	}
}
