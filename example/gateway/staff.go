package main

import (
	"net/http"
	"sync/atomic"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin"
)

// staff is where people who answer for the limits look and change them: the page, behind what authenticates them, and
// a switch that has this process only try its limits.
func staff(
	r *gin.Engine, limiter *ginlimit.Limiter, rdb redis.UniversalClient, password string, dryRun *atomic.Bool,
) error {
	page, err := admin.New(limiter, rdb, admin.WithPrefix(prefix), admin.WithChanges(func(r *http.Request) (string, bool) {
		name, _, ok := r.BasicAuth() // which is checked below
		return name, ok
	}))
	if err != nil {
		return err
	}
	routes := r.Group("/staff", gin.BasicAuth(gin.Accounts{"staff": password}))
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
		routes.Handle(method, "/*page", gin.WrapH(page))
	}
	routes.PUT("/dry-run/:on", func(c *gin.Context) {
		dryRun.Store(c.Param("on") == "on")
		c.Status(http.StatusNoContent)
	})
	return nil
}

// tried returns a handler that only tries the policies while the flag is set: what it would deny, events say.
func tried(flag *atomic.Bool, policies ...*ginlimit.Policy) gin.HandlerFunc {
	var trials []*ginlimit.Policy
	for _, p := range policies {
		trials = append(trials, must(p.With(ginlimit.WithDryRun())))
	}
	enforce, try := ginlimit.AllOf(policies...), ginlimit.AllOf(trials...)
	return func(c *gin.Context) {
		if flag.Load() {
			try(c)
		} else {
			enforce(c)
		}
	}
}
