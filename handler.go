package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/gin-gonic/gin"
)

const (
	// mostPlans is how many limits a handler keeps worked out, of those that its function returns.
	mostPlans = 1024
	// addressProbes is how many requests of a handler are looked at for whether Gin would believe forged addresses.
	addressProbes = 1024
)

// handler limits the requests that pass through it.
type handler struct {
	config
	limiter    *Limiter
	rules      rules
	name       string
	fieldName  string // in the fields of the draft; "" without a name
	keyName    string // what the keys of its clients begin with
	identities []identity
	policies   []string // how their limits are told of, in RateLimit-Policy
	allowed    *addressSet
	forbidden  *addressSet

	warned atomic.Bool
	probes atomic.Int32

	mu      sync.RWMutex
	planned map[Limit]*rules // with the first limit replaced
}

func (l *Limiter) handler(limit Limit, opts []Option) (gin.HandlerFunc, error) {
	if l.store == nil {
		return nil, errNotMade
	}
	cfg, faults := l.defaults.with(opts)
	for _, option := range cfg.limiter {
		faults = append(faults, fmt.Errorf("ginlimit: %s is an option of the limiter, not of one handler", option))
	}
	h := &handler{config: cfg, limiter: l, name: cfg.name, planned: map[Limit]*rules{}}
	limits := append([]Limit{limit}, cfg.limits...)
	if h.name == "" {
		h.name = rulesName(limits)
		if cfg.keyed {
			h.name += " by key"
		}
	}
	h.keyName = Key(h.name, "")
	collect := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	var err error
	fieldNames := map[string]bool{}
	if cfg.name != "" {
		h.fieldName = newFieldName(cfg.name, fieldNames)
	}
	h.rules, err = h.newRules(h.fieldName, limits)
	collect(err)
	h.identities, err = h.newIdentities(fieldNames)
	collect(err)
	h.allowed, err = newAddressSet(cfg.allow)
	collect(wrapped("WithAllowList", err))
	h.forbidden, err = newAddressSet(cfg.deny)
	collect(wrapped("WithDenyList", err))
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return h.serve, nil
}

func wrapped(option string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ginlimit: %s: %w", option, err)
}

// newRules returns the rules of limits, as the handler has them when Redis does not decide, and tells of them.
func (h *handler) newRules(name string, limits []Limit) (rules, error) {
	r, err := newRules(h.algorithm, limits...)
	r.failure = h.failure
	r.name(name, len(limits) > 1)
	if replicas := h.limiter.defaults.replicas; replicas > 1 {
		r.share = r.shareOf(replicas)
	}
	return r, err
}

func (h *handler) serve(c *gin.Context) {
	o := h.observe(h.name)
	probe := h.probe(c)
	if h.passes(c, &o) {
		h.heed(c, probe)
		return
	}
	n := 1
	if h.cost != nil {
		if n = h.cost(c); n < 0 {
			o.end(c.Request.Context(), OutcomeError, n, false, Limit{})
			h.fail(c, fmt.Errorf("%w: a cost of %d; want at least 0", ErrInvalidLimit, n))
			return
		}
	}
	now := h.newDecided()
	d, err := h.decide(c, n, &now.standings)
	h.heed(c, probe)
	outcome, free := h.outcome(d, err), n == 0 && errors.Is(err, ErrUnavailable)
	o.end(c.Request.Context(), outcome, n, free || d.result.Allowed, d.result.Limit)
	switch {
	case free:
		return // whatever is left
	case err != nil:
		h.fail(c, err)
		return
	}
	h.record(c, now, d)
	switch {
	case d.result.Allowed || h.dryRun:
	default:
		c.Status(http.StatusTooManyRequests)
		c.Abort()
		h.denied(c, d.result)
		return
	}
	if h.refund != nil && len(d.taken) > 0 {
		h.serveRefunding(c, d.taken)
	}
}

// outcome returns that of a decision, or of an error on the way to one.
func (h *handler) outcome(d decision, err error) Outcome {
	outcome := OutcomeError
	if d.asked {
		outcome = h.limiter.outcome(d.result, h.failure, err)
	}
	if h.dryRun && err == nil {
		return OutcomeDryRun
	}
	return outcome
}

// passes reports whether a request is not to be counted. One of a forbidden address is answered.
func (h *handler) passes(c *gin.Context, o *observation) bool {
	ctx := c.Request.Context()
	if len(h.allow) > 0 || len(h.deny) > 0 {
		addr, err := clientAddress(c)
		switch {
		case err != nil:
			o.end(ctx, OutcomeError, 0, false, Limit{})
			h.fail(c, err)
			return true
		case h.allowed.contains(addr):
			o.end(ctx, OutcomeListed, 0, true, Limit{})
			h.note(c, decision{result: passed()})
			return true
		case h.forbidden.contains(addr):
			o.end(ctx, OutcomeListed, 0, false, Limit{})
			h.note(c, decision{result: Result{RetryAfter: never, Source: FromPolicy}})
			if !h.dryRun {
				c.Abort()
				answerForbidden(c)
			}
			return true
		}
	}
	if h.skip != nil && h.skip(c) {
		o.end(ctx, OutcomeSkipped, 0, true, Limit{})
		h.note(c, decision{result: passed()})
		return true
	}
	return false
}

// passed is the Result of a request that is not counted.
func passed() Result {
	return Result{Allowed: true, Limit: Limit{Rate: -1}, Remaining: math.MaxInt, Source: FromPolicy}
}

// decision is what a handler decided on a request.
type decision struct {
	result Result
	hash   uint64   // of the handler's own key
	taken  []charge // which may have to be given back
	rules  *rules   // of the handler's own key
	asked  bool     // the store was, unless the rules settle it
}

// decide decides on a request of n tokens.
func (h *handler) decide(c *gin.Context, n int, told *standings) (decision, error) {
	client, err := h.clientKey(c)
	if err != nil {
		return decision{}, err
	}
	r := &h.rules
	if h.limit != nil {
		limit, err := h.limit(c, client)
		if err != nil {
			return decision{}, err
		}
		if r, err = h.plan(limit); err != nil {
			return decision{}, err
		}
	}
	own := claim{h.keyName, client, r, told}
	var d decision
	if len(h.identities) > 0 {
		d, err = h.decideAll(c, own, n)
	} else {
		d.result, d.hash, err = h.limiter.claim(c.Request.Context(), own, n)
		if h.refund != nil && d.result.Granted > 0 {
			d.taken = []charge{{own, d.result.Granted, d.result.Source}}
		}
	}
	d.rules, d.asked = r, true
	return d, err
}

// clientKey returns the key of a request.
func (h *handler) clientKey(c *gin.Context) (string, error) {
	client, err := h.config.key(c)
	if err == nil && client == "" {
		err = fmt.Errorf("%w: the key function returned none", ErrNoKey)
	}
	return client, err
}

// probe has a request tell whether its client's address is asked for, one of the first; nil for the others.
func (h *handler) probe(c *gin.Context) *addressProbe {
	if h.limiter.probed.Load() || h.probes.Load() >= addressProbes {
		return nil
	}
	h.probes.Add(1)
	probe := new(addressProbe)
	c.Set(addressProbeKey{}, probe)
	return probe
}

// heed warns, once, if an address was asked for that a client may have forged.
func (h *handler) heed(c *gin.Context, probe *addressProbe) {
	if probe != nil && probe.used.Load() && !h.limiter.probed.Swap(true) && believesStrangers(c) {
		h.logger.WarnContext(c.Request.Context(),
			"ginlimit: Gin believes X-Forwarded-For from anyone, so clients can choose whom they are counted for; "+
				"call SetTrustedProxies with the addresses of your proxies, or with nil if there are none")
	}
}

// plan returns the rules with the first limit replaced.
func (h *handler) plan(limit Limit) (*rules, error) {
	h.mu.RLock()
	r := h.planned[limit]
	h.mu.RUnlock()
	if r != nil {
		return r, nil
	}
	fresh, err := h.newRules(h.fieldName, append([]Limit{limit}, h.limits...))
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.planned) >= mostPlans {
		clear(h.planned)
	}
	h.planned[limit] = &fresh
	return &fresh, nil
}

// serveRefunding serves the request, and gives back what was taken for it if that is wanted.
func (h *handler) serveRefunding(c *gin.Context, taken []charge) {
	served := false
	defer func() { // not recover, which would hide where a panic came from
		if !served && !c.Writer.Written() {
			c.Status(http.StatusInternalServerError)
		}
		if !h.refund(c) {
			return
		}
		ctx := context.WithoutCancel(c.Request.Context()) // its client may be gone
		for _, charge := range taken {
			if err := h.limiter.giveBack(ctx, charge); err != nil {
				_ = c.Error(err) // for the application's log; it returns what it was given
			}
		}
	}()
	c.Next()
	served = true
}

func (h *handler) fail(c *gin.Context, err error) {
	if h.dryRun {
		_ = c.Error(err) // for the application's log; it returns what it was given
		return
	}
	if d := decidedOn(c); d != nil {
		d.tellAll(c.Writer.Header(), true)
	}
	status, size := c.Writer.Status(), c.Writer.Size() // -1 until something is written
	h.failed(c, err)
	if c.Writer.Status() != status || c.Writer.Size() != size {
		c.Abort()
	}
}
