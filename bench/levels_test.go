package bench

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// BenchmarkLevelScript says what a decision on a rate and on requests in flight at some levels costs
// Redis: usec_per_call of the script, in batches by turns, from INFO commandstats. One process or two hold
// slots at each level.
func BenchmarkLevelScript(b *testing.B) {
	const batches = 20
	gin.SetMode(gin.ReleaseMode)
	for _, row := range []struct{ levels, processes int }{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {1, 2}, {3, 2}} {
		b.Run(fmt.Sprintf("levels=%d/processes=%d", row.levels, row.processes), func(b *testing.B) {
			addr := redistest.Start(b)
			rdb := redistest.Connect(b, addr)
			calls := func() []any {
				spied := redistest.Connect(b, addr)
				limiter, err := ginlimit.NewLimiter(spied, ginlimit.WithTimeout(time.Minute))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = limiter.Close() })
				hook := recordHook{args: new([][]any)}
				spied.AddHook(hook)
				everybody := ginlimit.WithKey(func(*gin.Context) (string, error) { return "all", nil })
				var policies []*ginlimit.Policy
				for level := range max(1, row.levels) {
					var options []ginlimit.PolicyOption
					if level == 0 {
						options = append(options, ginlimit.PerMinute(100).WithBurst(1_000_000_000))
					} else {
						options = append(options, everybody)
					}
					if level < row.levels {
						options = append(options, ginlimit.InFlight(1<<20))
					}
					policy, err := limiter.Policy(fmt.Sprint("level ", level), options...)
					if err != nil {
						b.Fatal(err)
					}
					policies = append(policies, policy)
				}
				engine, served, end := gin.New(), make(chan struct{}), make(chan struct{})
				engine.GET("/", ginlimit.AllOf(policies...), func(*gin.Context) { close(served); <-end })
				go engine.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
				<-served
				b.Cleanup(func() { close(end) })
				return lastOf(*hook.args, 1)[0]
			}
			var takes [][]any
			for range row.processes {
				takes = append(takes, calls())
			}
			// A repeated call takes nothing more, and costs as much.
			all := slices.Repeat(takes, scriptClients/row.processes)
			for b.Loop() {
				var costs []float64
				for range batches {
					costs = append(costs, costPerCall(b, rdb, all))
				}
				b.ReportMetric(median(costs), "µs")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
