package bench

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// allOfHandlers are one policy with two limits, two policies with one each, and two whose costs differ.
func allOfHandlers(b *testing.B, rdb redis.UniversalClient) map[string]gin.HandlerFunc {
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(10*time.Second))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = limiter.Close() })
	policy := func(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
		p, err := limiter.Policy(name, opts...)
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	const large = 1_000_000_000
	minute, hour := ginlimit.PerMinute(100).WithBurst(large), ginlimit.PerHour(100).WithBurst(large)
	costs := ginlimit.WithCost(func(*gin.Context) int { return 900 })
	return map[string]gin.HandlerFunc{
		"two limits":   policy("two limits", minute, hour).Handler(),
		"two policies": ginlimit.AllOf(policy("one", minute), policy("other", hour)),
		"two costs":    ginlimit.AllOf(policy("requests", minute), policy("tokens", hour, costs)),
	}
}

// BenchmarkAllOfScript says what a decision on two policies costs Redis beside one on two limits: usec_per_call
// of the script, in batches by turns.
func BenchmarkAllOfScript(b *testing.B) {
	gin.SetMode(gin.ReleaseMode)
	addr := redistest.Start(b)
	rdb, spied := redistest.Connect(b, addr), redistest.Connect(b, addr)
	hook := recordHook{args: new([][]any)}
	spied.AddHook(hook)
	calls := map[string][][]any{}
	for name, handler := range allOfHandlers(b, spied) {
		engine := gin.New()
		engine.GET("/", handler)
		for i := range scriptClients {
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			req.RemoteAddr = fmt.Sprintf("10.0.%d.%d:1", i>>8, i&255)
			engine.ServeHTTP(httptest.NewRecorder(), req)
		}
		calls[name] = lastOf(*hook.args, scriptClients)
	}
	costs := map[string][]float64{}
	for b.Loop() {
		for range scriptRounds {
			for name, batch := range calls {
				costs[name] = append(costs[name], costPerCall(b, rdb, batch))
			}
		}
	}
	limits := median(costs["two limits"])
	b.ReportMetric(limits, "µs/two-limits")
	b.ReportMetric(median(costs["two policies"])/limits, "two-policies")
	b.ReportMetric(median(costs["two costs"])/limits, "two-costs")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAllOf serves requests of 64 callers by turns, and says how much longer two policies take than two
// limits, and how much more CPU Redis.
func BenchmarkAllOf(b *testing.B) {
	const callers, requests, rounds = 64, 4000, 15
	gin.SetMode(gin.ReleaseMode)
	rdb := redistest.Connect(b, redistest.Start(b))
	engines, times := map[string]*gin.Engine{}, map[string][]float64{}
	for name, handler := range allOfHandlers(b, rdb) {
		engines[name] = gin.New()
		engines[name].GET("/", handler)
	}
	for b.Loop() {
		for range rounds {
			for name, engine := range engines {
				var all sync.WaitGroup
				start := time.Now()
				for caller := range callers {
					all.Go(func() {
						req := httptest.NewRequest(http.MethodGet, "/", nil)
						req.RemoteAddr = fmt.Sprintf("10.0.0.%d:1", caller)
						for range requests / callers {
							engine.ServeHTTP(httptest.NewRecorder(), req)
						}
					})
				}
				all.Wait()
				times[name] = append(times[name], time.Since(start).Seconds())
			}
		}
	}
	limits := median(times["two limits"])
	b.ReportMetric(limits/requests*1e6, "µs/two-limits")
	b.ReportMetric(median(times["two policies"])/limits, "two-policies")
	b.ReportMetric(median(times["two costs"])/limits, "two-costs")
	b.ReportMetric(0, "ns/op")
}
