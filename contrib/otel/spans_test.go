package ginlimitotel_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/extra/redisotel/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// requireChildren wants every span of a script to be a child of the span of a request, and returns
// how many there are of each name. Those of a cluster client that looks for its nodes are its own.
// On a machine that may be busy, some have no parent: the values of a caller's context are read for
// so long only.
func requireChildren(t *testing.T, spans tracetest.SpanStubs, busy bool) map[string]int {
	t.Helper()
	requests := map[trace.SpanID]trace.TraceID{}
	for _, span := range spans {
		if span.Name == "request" {
			requests[span.SpanContext.SpanID()] = span.SpanContext.TraceID()
		}
	}
	names, children := map[string]int{}, 0
	for _, span := range spans {
		if !strings.Contains(span.Name, "eval") && !strings.Contains(span.Name, "script") {
			continue
		}
		names[span.Name]++
		traceID, ok := requests[span.Parent.SpanID()]
		if !busy || span.Parent.IsValid() {
			children++
			assert.True(t, ok, "%s is no child of a request", span.Name)
			assert.Equal(t, traceID, span.SpanContext.TraceID())
		}
		for _, attribute := range span.Attributes {
			assert.NotContains(t, attribute.Value.Emit(), "client")
		}
	}
	if len(requests) > 1 {
		require.Positive(t, children)
	}
	return names
}

// testSpansOfRedis has requests come one after another, and at once.
func testSpansOfRedis(t *testing.T, rdb redis.UniversalClient, busy bool) {
	tracers, spans := newTracer(t)
	require.NoError(t, redisotel.InstrumentTracing(rdb, redisotel.WithTracerProvider(tracers),
		redisotel.WithDBStatement(false),
		redisotel.WithDialFilter(true)))
	observer, _ := newObserver(t)
	limiter := newLimiter(t, rdb, ginlimit.WithObserver(observer.Observe), ginlimit.WithFailureMode(ginlimit.FailClosed))
	r := newEngine(t)
	r.Use(traced(tracers.Tracer("test")))
	r.GET("/:client", limiter.Handler("api", ginlimit.PerHour(1000), ginlimit.WithKey(ginlimit.ByParam("client"))))
	for i := range 10 { // until connections are made, and every node has the script
		require.Equal(t, http.StatusOK, get(r, fmt.Sprint("/client-", i)))
	}
	require.NotEmpty(t, requireChildren(t, spans.GetSpans(), busy))
	spans.Reset()
	require.Equal(t, http.StatusOK, get(r, "/client-1"))
	if one := requireChildren(t, spans.GetSpans(), busy); busy { // policies may be published at the same time
		require.Positive(t, one["evalsha"])
	} else {
		require.Equal(t, map[string]int{"evalsha": 1}, one)
	}

	counted := func(n uint64) (s ginlimit.Stats) { // after its answer
		require.True(t, testkit.BecomesTrue(nil, func() bool { s = limiter.Stats(); return s.Decisions >= n }))
		return s
	}
	before := counted(11)
	for range 10 {
		var all sync.WaitGroup
		start := make(chan struct{})
		for i := range 64 {
			all.Go(func() {
				<-start
				assert.Equal(t, http.StatusOK, get(r, fmt.Sprint("/client-", i%10)))
			})
		}
		close(start)
		all.Wait()
	}
	after := counted(before.Decisions + 640)
	require.EqualValues(t, 640, after.Decisions-before.Decisions)
	require.Less(t, after.Batches-before.Batches, uint64(640), "some shared a batch")
	redisSpans := 0
	for _, n := range requireChildren(t, spans.GetSpans(), busy) {
		redisSpans += n
	}
	require.GreaterOrEqual(t, redisSpans, int(after.Batches-before.Batches))
}

func TestSpansOfRedisAreChildrenOfRequests(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) { testSpansOfRedis(t, b.Redis, false) })
}
