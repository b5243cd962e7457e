package main

import (
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

// staff has routes for people who answer for the limits, behind what authenticates them: the status of a client under
// every policy, blocks and resets, and limits replaced for a time in every process.
type staff struct {
	limiter  *ginlimit.Limiter
	policies map[string]*ginlimit.Policy
	dryRun   atomic.Bool // this process only tries its limits
}

// policy makes a policy that staff may look after.
func (s *staff) policy(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
	s.policies[name] = must(s.limiter.Policy(name, opts...))
	return s.policies[name]
}

func (s *staff) routes(r gin.IRoutes) {
	r.GET("/clients/:client", s.status)
	r.POST("/policies/:policy/clients/:client/block", s.change(func(c *gin.Context, p *ginlimit.Policy) error {
		d, err := time.ParseDuration(c.Query("for"))
		return errors.Join(err, p.Block(c.Request.Context(), c.Param("client"), d))
	}))
	r.POST("/policies/:policy/clients/:client/reset", s.change(func(c *gin.Context, p *ginlimit.Policy) error {
		return p.Reset(c.Request.Context(), c.Param("client"))
	}))
	r.PUT("/policies/:policy/override", s.change(s.override))
	r.PUT("/dry-run/:on", func(c *gin.Context) {
		s.dryRun.Store(c.Param("on") == "on")
		c.Status(http.StatusNoContent)
	})
}

// status answers what a client has left under each policy, and which overrides there are.
func (s *staff) status(c *gin.Context) {
	found := gin.H{}
	for name, p := range s.policies {
		if rows, err := p.Status(c.Request.Context(), c.Param("client")); err == nil {
			found[name] = rows
		} else {
			found[name] = err.Error() // such as that a tenant is missing
		}
	}
	overrides, err := s.limiter.Overrides(c.Request.Context())
	if err != nil {
		fail(c, err)
		return
	}
	c.JSON(http.StatusOK, gin.H{"policies": found, "overrides": overrides})
}

// override replaces the limits of a policy for one client, or for all without one; no limits end that.
func (s *staff) override(c *gin.Context, _ *ginlimit.Policy) error {
	var o ginlimit.Override
	if err := c.ShouldBindJSON(&o); err != nil {
		return errors.Join(ginlimit.ErrInvalidArgument, err)
	}
	o.Policy = c.Param("policy")
	return s.limiter.Override(c.Request.Context(), o)
}

// change makes a handler of something that is done to a policy.
func (s *staff) change(do func(*gin.Context, *ginlimit.Policy) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		p := s.policies[c.Param("policy")]
		if p == nil {
			c.AbortWithStatus(http.StatusNotFound)
		} else if err := do(c, p); err != nil {
			fail(c, err)
		} else {
			c.Status(http.StatusNoContent)
		}
	}
}

// fail says to staff what is wrong with their request, or that Redis is away.
func fail(c *gin.Context, err error) {
	if errors.Is(err, ginlimit.ErrInvalidArgument) {
		c.AbortWithStatusJSON(http.StatusBadRequest, gin.H{"error": err.Error()})
		return
	}
	_ = c.AbortWithError(http.StatusServiceUnavailable, err)
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
