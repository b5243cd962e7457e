package ginlimitotel_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ginlimit/ginlimit"
	ginlimitotel "github.com/ginlimit/ginlimit/contrib/otel"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// newTracer returns the SDK's tracer, and what exports its spans as they end.
func newTracer(t *testing.T) (*sdktrace.TracerProvider, *tracetest.InMemoryExporter) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	t.Cleanup(func() { assert.NoError(t, provider.Shutdown(context.Background())) })
	return provider, spans
}

// newObserver returns an observer and what reads its metrics.
func newObserver(t *testing.T) (*ginlimitotel.Observer, sdkmetric.Reader) {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	observer := testkit.Must(ginlimitotel.New(ginlimitotel.WithMeterProvider(provider)))
	return observer, reader
}

// traced begins a span for each request.
func traced(tracer trace.Tracer) gin.HandlerFunc {
	return func(c *gin.Context) {
		ctx, span := tracer.Start(c.Request.Context(), "request", trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		c.Request = c.Request.WithContext(ctx)
		c.Next()
	}
}

func newEngine(t *testing.T) *gin.Engine {
	gin.SetMode(gin.TestMode)
	r := gin.New()
	require.NoError(t, r.SetTrustedProxies(nil))
	return r
}

func newLimiter(t *testing.T, rdb redis.UniversalClient, opts ...ginlimit.LimiterOption) *ginlimit.Limiter {
	limiter := testkit.Must(ginlimit.NewLimiter(rdb, append([]ginlimit.LimiterOption{
		ginlimit.WithLogger(slog.New(slog.DiscardHandler)), ginlimit.WithTimeout(10 * time.Second),
		ginlimit.WithReplicas(1)}, opts...)...))
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	return limiter
}

func connect(t *testing.T) (*redis.Client, *miniredis.Miniredis) {
	mini := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, mini
}

func get(r http.Handler, path string) int {
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodGet, path, nil)
	req.Header.Set("X-API-Key", "secret")
	r.ServeHTTP(rec, req)
	return rec.Code
}

// attributesOf returns attributes by their names.
func attributesOf(all []attribute.KeyValue) map[string]any {
	byName := map[string]any{}
	for _, a := range all {
		byName[string(a.Key)] = a.Value.AsInterface()
	}
	return byName
}

// TestSpanDescribesTheLastDecision: exactly, so that no attribute has the client's key or is of an earlier decision.
func TestSpanDescribesTheLastDecision(t *testing.T) {
	rdb, _ := connect(t)
	tracers, spans := newTracer(t)
	observer, _ := newObserver(t)
	limiter := newLimiter(t, rdb, ginlimit.WithObserver(observer.Observe),
		ginlimit.WithKey(ginlimit.ByHeader("X-API-Key")))
	r := newEngine(t)
	r.Use(traced(tracers.Tracer("test")), limiter.Handler("all", ginlimit.PerHour(100)))
	skip := ginlimit.WithSkip(func(*gin.Context) bool { return true })
	r.GET("/search", limiter.Handler("search", ginlimit.PerHour(1)))
	r.GET("/health", limiter.Handler("health", ginlimit.PerHour(1), skip))
	r.GET("/trial", limiter.Handler("trial", ginlimit.PerHour(0), ginlimit.WithDryRun()))
	r.GET("/other", func(*gin.Context) {})
	for _, row := range []struct {
		path, policy, outcome, source, cause, limit string
		remaining                                   int
	}{
		{"/other", "all", "allowed", "redis", "", "100/h", 99},
		{"/search", "search", "allowed", "redis", "", "1/h", 0},
		{"/search", "search", "denied", "redis", "rate", "1/h", 0},
		{"/health", "health", "skipped", "policy", "", "", 0},
		{"/trial", "trial", "denied", "policy", "never", "0/h", 0},
	} {
		spans.Reset()
		get(r, row.path)
		ended := spans.GetSpans()
		require.Len(t, ended, 1)
		require.Equal(t, map[string]any{"ginlimit.policy": row.policy, "ginlimit.outcome": row.outcome,
			"ginlimit.source": row.source, "ginlimit.dry_run": row.policy == "trial", "ginlimit.cause": row.cause,
			"ginlimit.reason": "", "ginlimit.limit": row.limit, "ginlimit.remaining": int64(row.remaining),
		}, attributesOf(ended[0].Attributes))
		require.Empty(t, ended[0].Events)
	}
}

// collected returns the values of all metrics by name and attributes; of a histogram, how many values it has.
func collected(t *testing.T, reader sdkmetric.Reader) (values map[string]int64, units map[string]string) {
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	values, units = map[string]int64{}, map[string]string{}
	for _, scope := range all.ScopeMetrics {
		require.Equal(t, ginlimitotel.ScopeName, scope.Scope.Name)
		for _, m := range scope.Metrics {
			units[m.Name] = m.Unit
			require.NotEmpty(t, m.Description)
			name := func(set attribute.Set) string {
				for _, a := range set.ToSlice() {
					require.True(t, utf8.ValidString(a.Value.Emit()), "or OTLP exporters fail")
				}
				if set.Len() == 0 {
					return m.Name
				}
				return m.Name + " " + set.Encoded(attribute.DefaultEncoder())
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					values[name(p.Attributes)] = p.Value
				}
				require.Equal(t, regexp.MustCompile(`s$`).MatchString(m.Name), data.IsMonotonic, "counters are plural: %s", m.Name)
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					values[name(p.Attributes)] = int64(p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					values[name(p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					values[name(p.Attributes)] = int64(p.Count)
					require.Len(t, p.Bounds, 14)
					require.Less(t, p.Sum, 10.0, "seconds")
				}
			default:
				require.Failf(t, "another kind", "%T", data)
			}
		}
	}
	return values, units
}

func TestMetricsShowKnownTraffic(t *testing.T) {
	rdb, mini := connect(t)
	observer, reader := newObserver(t)
	limiter := newLimiter(t, rdb, ginlimit.WithObserver(observer.Observe))
	observer.Watch(limiter, nil)
	observer.Watch(limiter)
	r := newEngine(t)
	r.GET("/search", limiter.Handler("search", ginlimit.PerHour(3)))
	r.GET("/free", limiter.Handler("free\xff", ginlimit.PerHour(-1)))
	for range 4 {
		get(r, "/search")
	}
	get(r, "/free")
	require.NoError(t, limiter.Override(t.Context(), ginlimit.Override{Policy: "search", Client: "another",
		Limits: []ginlimit.Limit{ginlimit.PerHour(9)}, Until: time.Now().Add(time.Hour)}))
	var values map[string]int64
	read := func() map[string]int64 { values, _ = collected(t, reader); return values }
	require.Eventually(t, func() bool {
		return read()["ginlimit.redis.batch.in_flight"] == 0
	}, time.Minute, time.Millisecond)
	const search = " ginlimit.dry_run=false,ginlimit.outcome=allowed,ginlimit.policy=search,ginlimit.source=redis"
	const denied = " ginlimit.cause=rate,ginlimit.dry_run=false,ginlimit.outcome=denied,ginlimit.policy=search," +
		"ginlimit.source=redis"
	const free = " ginlimit.dry_run=false,ginlimit.outcome=allowed,ginlimit.policy=free\uFFFD,ginlimit.source=policy"
	require.Equal(t, map[string]int64{
		"ginlimit.decisions" + search: 3, "ginlimit.decisions" + denied: 1, "ginlimit.decisions" + free: 1,
		"ginlimit.decision.duration" + search: 3, "ginlimit.decision.duration" + denied: 1,
		"ginlimit.decision.duration" + free: 1,
		"ginlimit.redis.server.count":       1, "ginlimit.redis.breaker.open": 0, "ginlimit.redis.batches": 4,
		"ginlimit.redis.decisions":       4,
		"ginlimit.redis.batch.in_flight": 0, "ginlimit.redis.decision.queued": 0,
		"ginlimit.slot.usage": 0, "ginlimit.ban.count": 0, "ginlimit.override.count": 1, "ginlimit.replica.count": 1,
		"ginlimit.lease.count": 0, "ginlimit.lease.decisions": 0, "ginlimit.denial.remembered": 1,
		"ginlimit.local.bucket.count": 0, "ginlimit.wait.active ginlimit.policy=search": 0,
		"ginlimit.wait.active ginlimit.policy=free\uFFFD": 0,
	}, values)

	mini.Close()
	require.Eventually(t, func() bool {
		get(r, "/search")
		return read()["ginlimit.redis.breaker.open"] == 1
	}, time.Minute, time.Millisecond)
	require.Positive(t,
		values["ginlimit.decisions error.type=connection_refused,ginlimit.dry_run=false,ginlimit.outcome=allowed,"+
			"ginlimit.policy=search,ginlimit.source=local"])
	require.Equal(t, int64(1), values["ginlimit.local.bucket.count"])
	require.Eventually(t, func() bool {
		return read()["ginlimit.redis.breaker.transitions error.type=connection_refused,ginlimit.breaker.state=open"] == 1
	}, time.Minute, time.Millisecond)

	require.NoError(t, observer.Unregister())
	require.NoError(t, observer.Unregister())
	require.NotContains(t, read(), "ginlimit.redis.server.count")
	require.Contains(t, values, "ginlimit.decisions"+search)
}

func TestFaultsOfOptions(t *testing.T) {
	_, err := ginlimitotel.New(nil, ginlimitotel.WithMeterProvider(nil))
	const text = "ginlimit: invalid argument: ginlimitotel: "
	require.EqualError(t, err, text+"option 1 is nil\n"+text+"the meter provider is nil")
	joined, ok := err.(interface{ Unwrap() []error })
	require.True(t, ok)
	for i, option := range []string{"", "WithMeterProvider"} {
		var fault *ginlimit.OptionError
		require.ErrorAs(t, joined.Unwrap()[i], &fault)
		require.ErrorIs(t, fault, ginlimit.ErrInvalidArgument)
		require.Equal(t, i, fault.Index)
		require.Equal(t, option, fault.Option)
	}
	observer, err := ginlimitotel.New() // the global one
	require.NoError(t, err)
	observer.Observe(t.Context(), ginlimit.Event{})
	require.NoError(t, observer.Unregister())
}

// TestASettlementIsNoDecision: it is not counted, and the span keeps the attributes of the decision.
func TestASettlementIsNoDecision(t *testing.T) {
	observer, reader := newObserver(t)
	provider, spans := newTracer(t)
	ctx, span := provider.Tracer("test").Start(t.Context(), "request")
	observer.Observe(ctx, ginlimit.Event{Name: "p", Outcome: ginlimit.OutcomeSettled, Allowed: true, Cost: 3})
	span.End()
	require.Empty(t, spans.GetSpans()[0].Attributes)
	values, _ := collected(t, reader)
	for metric := range values {
		require.NotContains(t, metric, "ginlimit.decision")
	}
}

func TestPlansAndWaits(t *testing.T) {
	rdb, _ := connect(t)
	observer, reader := newObserver(t)
	source := func(context.Context, string) ([]ginlimit.Limit, error) {
		return []ginlimit.Limit{ginlimit.PerHour(1)}, nil
	}
	plans := testkit.Must(newLimiter(t, rdb).NewPlans("plans", time.Minute, source))
	observer.WatchPlans(plans, nil)
	observer.WatchPlans(plans)
	for range 3 {
		testkit.Must(plans.Limits(t.Context(), "k"))
	}
	observer.Observe(t.Context(),
		ginlimit.Event{Name: "p", Duration: 9 * time.Second, Waited: 7 * time.Second, Limit: ginlimit.PerHour(1)})
	values, _ := collected(t, reader)
	require.Equal(t, int64(1), values["ginlimit.plan.lookups ginlimit.plan.result=miss"])
	require.Equal(t, int64(2), values["ginlimit.plan.lookups ginlimit.plan.result=hit"])
	require.Equal(t, int64(7), values["ginlimit.wait.time ginlimit.policy=p"])
}

func TestReadmeNamesEveryMetric(t *testing.T) {
	text := testkit.Must(os.ReadFile("README.md"))
	observer, reader := newObserver(t)
	observer.Observe(t.Context(), ginlimit.Event{Waited: time.Second})
	rdb, mini := connect(t)
	limiter := newLimiter(t, rdb)
	plans := testkit.Must(limiter.NewPlans("plans", time.Minute,
		func(context.Context, string) ([]ginlimit.Limit, error) { return nil, nil }))
	observer.WatchPlans(plans)
	policy := testkit.Must(limiter.Policy("test", ginlimit.PerHour(9)))
	observer.Watch(limiter)
	mini.Close()
	require.Eventually(t, func() bool {
		_, _ = policy.Allow(t.Context(), "k")
		return limiter.Stats().LostServers == 1 && limiter.Stats().Transitions != nil
	}, time.Minute, time.Millisecond)
	_, units := collected(t, reader)
	named := map[string]string{}
	for _, m := range regexp.MustCompile(
		"(?m)^- `(ginlimit[a-z._]+)`, [a-z]+, `(.+?)`$").FindAllStringSubmatch(string(text), -1) {
		named[m[1]] = m[2]
	}
	require.Equal(t, units, named)
}

// TestReadmeNamesEveryWord: of the attributes whose values are a closed set.
func TestReadmeNamesEveryWord(t *testing.T) {
	t.Parallel()
	text := testkit.Must(os.ReadFile("README.md"))
	for key, words := range map[attribute.Key][]string{
		ginlimitotel.OutcomeKey: named(ginlimit.OutcomeAllowed)[:ginlimit.OutcomeSettled],
		ginlimitotel.SourceKey:  named(ginlimit.FromRedis),
		ginlimitotel.CauseKey:   named(ginlimit.CauseRate),
	} {
		line := regexp.MustCompile("(?m)^- `" + regexp.QuoteMeta(string(key)) + "`: .*$").FindString(string(text))
		require.NotEmpty(t, line, key)
		for _, word := range words {
			assert.Contains(t, line, "`"+word+"`", key)
		}
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
