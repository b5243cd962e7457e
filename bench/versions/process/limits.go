package main

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// engines returns an engine for each kind of limits. None but "denied" and "queue" ever runs out.
func engines(addr string) (map[string]*gin.Engine, error) {
	policies := map[string][][]ginlimit.PolicyOption{
		"token":  {{ginlimit.PerSecond(1_000_000)}},
		"denied": {{ginlimit.PerDay(1)}},
		"limits": {{ginlimit.WithLimits(
			ginlimit.PerSecond(1_000_000), ginlimit.PerMinute(60_000_000), ginlimit.PerHour(1_000_000_000))}},
		"policies": {{ginlimit.PerSecond(1_000_000)}, {ginlimit.PerMinute(60_000_000)}, {ginlimit.PerHour(1_000_000_000)}},
		"slots":    {{ginlimit.InFlight(1000)}},
		"queue":    {{ginlimit.InFlight(4), ginlimit.WithQueue(1000, time.Minute)}},
		"lease":    {{ginlimit.PerSecond(1_000_000), ginlimit.WithLease(100 * time.Millisecond)}},
		"shares": {{ginlimit.PerSecond(1_000_000), ginlimit.WithKey(func(*gin.Context) (string, error) { return "all", nil }),
			ginlimit.WithShares(func(c *gin.Context) (string, int) { return c.RemoteIP(), 1 })}},
	}
	all := map[string]*gin.Engine{}
	for name, options := range policies {
		rdb := redis.NewClient(&redis.Options{Addr: addr}) // as in the quickstart
		limiter, err := ginlimit.NewLimiter(rdb)
		if err != nil {
			return nil, err
		}
		members := make([]*ginlimit.Policy, len(options))
		for i, o := range options {
			if members[i], err = limiter.Policy(name+string(rune('0'+i)), o...); err != nil {
				return nil, err
			}
		}
		engine := gin.New()
		if err := engine.SetTrustedProxies(nil); err != nil {
			return nil, err
		}
		engine.GET("/", ginlimit.AllOf(members...), func(c *gin.Context) { c.Status(http.StatusOK) })
		all[name] = engine
	}
	return all, nil
}
