//go:build integration

package web_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestLevelsAreNeverPassed: at no level are more in flight than it allows, whichever process serves them, with a queue
// and without. In the end all slots are free.
func TestLevelsAreNeverPassed(t *testing.T) {
	t.Parallel()
	cluster := testkit.StartCluster(t, 3)
	single := testkit.StartRedis(t)
	for name, connect := range map[string]func() redis.UniversalClient{
		"one server": func() redis.UniversalClient { return testkit.Connect(t, single) },
		"cluster": func() redis.UniversalClient {
			rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster})
			t.Cleanup(func() { _ = rdb.Close() })
			return rdb
		},
	} {
		for queue, options := range map[string][]ginlimit.PolicyOption{
			"at once": nil, "in a queue": {ginlimit.WithQueue(5, time.Second)},
		} {
			t.Run(name+", "+queue, func(t *testing.T) {
				t.Parallel()
				now, most := map[string]*atomic.Int64{}, map[string]int64{}
				for _, level := range levels {
					for client := range 3 {
						now[fmt.Sprint(level.name, client)] = new(atomic.Int64)
						most[fmt.Sprint(level.name, client)] = int64(level.slots)
					}
				}
				var passed atomic.Int64
				serve := func(c *gin.Context) {
					passed.Add(1)
					for _, level := range levels {
						of := level.name + c.GetHeader(level.field)
						n := now[of].Add(1)
						assert.LessOrEqual(t, n, most[of], of)
						defer now[of].Add(-1)
					}
					time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
				}
				prefix := ginlimit.WithPrefix(queue)
				var all sync.WaitGroup
				var limiters []*testkit.Limiter
				for range 4 {
					l := testkit.NewLimiter(t, connect(), prefix)
					limiters = append(limiters, l)
					router := gin.New()
					router.GET("/", levelsHandlerOf(l, 1_000_000, options...), serve)
					for range 6 {
						all.Go(func() {
							for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
								rec := testkit.Get(router, "/", func(r *http.Request) {
									for _, level := range levels {
										r.Header.Set(level.field, fmt.Sprint(rand.IntN(3)))
									}
								})
								if rec.Code != http.StatusOK {
									assert.Equal(t, http.StatusTooManyRequests, rec.Code, rec.Body)
								}
							}
						})
					}
				}
				all.Wait()
				assert.Greater(t, passed.Load(), int64(20))
				t.Logf("%d requests passed", passed.Load())
				for _, level := range levels {
					for client := range 3 {
						require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
							rows, err := limiters[0].Status(t.Context(), ginlimit.Key(level.name, fmt.Sprint(client)))
							return err == nil && rows[len(rows)-1].Remaining == level.slots
						}), "%s %d", level.name, client)
					}
				}
			})
		}
	}
}
