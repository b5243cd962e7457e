package main

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

// tenants share one limit on the page. Their names come from the query: an application takes them from its
// authentication.
var tenants = [...]string{"acme", "beta", "core"}

// weights are those that a visitor may give to a tenant.
var weights = [...]string{"1", "2", "5"}

// sharedLimit is what the tenants of a view share. The burst is eight tokens for each tenant, times its weight.
var sharedLimit = ginlimit.PerSecond(50).WithBurst(8 * 3 * 5)

// viewID matches the name of a view, which the page invents. Each view has its own bucket, and Redis forgets it when it
// is full.
var viewID = regexp.MustCompile(`^[0-9a-f]{16}$`)

const errView = "view: want 16 hexadecimal digits\n"

var (
	errTenant = fmt.Sprintf("tenant: want one of %s\n", strings.Join(tenants[:], ", "))
	errWeight = fmt.Sprintf("weight: want one of %s\n", strings.Join(weights[:], ", "))
	errAsked  = fmt.Sprintf("n and weight: want one for each of %s\n", strings.Join(tenants[:], ", "))
)

// addShares adds a route that tenants share: /share?view=0123456789abcdef&tenant=acme&weight=1.
func addShares(r *gin.Engine, limiter *ginlimit.Limiter) {
	r.GET("/share", checkShare, limiter.Handler("shares", sharedLimit,
		ginlimit.WithKey(func(c *gin.Context) (string, error) { return c.Query("view"), nil }),
		ginlimit.WithShares(func(c *gin.Context) (string, int) {
			weight, _ := strconv.Atoi(c.Query("weight")) // checkShare has read it
			return c.Query("tenant"), weight
		})), answer("admitted"))
}

// checkShare answers a request that names no view, tenant or weight of this page.
func checkShare(c *gin.Context) {
	switch {
	case !viewID.MatchString(c.Query("view")):
		c.String(http.StatusBadRequest, errView)
	case !slices.Contains(tenants[:], c.Query("tenant")):
		c.String(http.StatusBadRequest, errTenant)
	case !slices.Contains(weights[:], c.Query("weight")):
		c.String(http.StatusBadRequest, errWeight)
	default:
		return
	}
	c.Abort()
}

// sharesView is an answer to the page: what each tenant got.
type sharesView struct {
	Answers [len(tenants)]tally `json:"answers"`
}

// share sends n requests of each tenant through the middleware of a process, in an order that spreads each tenant's
// requests evenly.
func (p *playground) share(c *gin.Context) {
	c.Header("Cache-Control", "no-store")
	asked, weight := c.QueryArray("n"), c.QueryArray("weight")
	if len(asked) != len(tenants) || len(weight) != len(tenants) {
		c.String(http.StatusBadRequest, errAsked)
		return
	}
	handler, ok := p.via(c)
	if !ok {
		return
	}
	if !viewID.MatchString(c.Query("view")) {
		c.String(http.StatusBadRequest, errView)
		return
	}
	var n [len(tenants)]int
	for i := range tenants {
		if n[i], ok = number(c, asked[i], 0); !ok {
			return
		}
		if !slices.Contains(weights[:], weight[i]) {
			c.String(http.StatusBadRequest, errWeight)
			return
		}
	}

	var view sharesView
	for step := range maxRequests {
		for i, tenant := range tenants {
			if (step+1)*n[i]/maxRequests == step*n[i]/maxRequests {
				continue
			}
			view.Answers[i].add(handler, requestOf(c, "/share",
				url.Values{"view": {c.Query("view")}, "tenant": {tenant}, "weight": {weight[i]}}))
		}
		if c.Request.Context().Err() != nil {
			return // the page is gone
		}
	}
	c.JSON(http.StatusOK, view)
}
