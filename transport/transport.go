// Package transport keeps the limits of an API that an application calls, for all its processes together. It is
// experimental: its numbers and details may change in a minor version.
//
//	partner, err := limiter.Policy("partner", ginlimit.PerSecond(100).WithBurst(90), ginlimit.InFlight(20))
//	calls, err := transport.New(partner, nil)
//	client := &http.Client{Transport: calls}
//
// It owns what happens around one request: the wait for a token and a slot, what a response says of the
// partner's limits, and what is given back. It is built on the public API of ginlimit and on package
// internal/traits, and knows neither Redis nor Gin.
package transport

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/traits"
)

// Option configures a transport; nil is an error.
type Option func(*config)

// WithKey chooses the key that a request counts under, such as the partner's account. The default is the
// host, in lower case. An empty key and an error are the request's: it is not sent, and the error wraps
// [ginlimit.ErrNoKey] or what f returned. Do not return a credential: use a name of it.
func WithKey(f func(*http.Request) (string, error)) Option {
	return func(c *config) {
		c.key = f
		c.note("WithKey", f != nil, "WithKey"+isNil)
	}
}

// WithCost sets how many tokens a request takes, at least 1; by default 1. A smaller number is the request's
// error. With it the policy counts tokens, and only a response's fields about tokens apply. f must not read
// the body; use GetBody.
func WithCost(f func(*http.Request) int) Option {
	return func(c *config) {
		c.cost = f
		c.note("WithCost", f != nil, "WithCost"+isNil)
	}
}

// WithSettle replaces what [WithCost] took by what the response says, once its body is closed: see
// [ginlimit.Reservation.Settle]. After a negative number the estimate stands. f must not read the body.
func WithSettle(f func(*http.Response) int) Option {
	return func(c *config) {
		c.settle = f
		c.note("WithSettle", f != nil, "WithSettle"+isNil)
	}
}

// WithMaxStop bounds for how long one response can stop a key, at least a second; by default an hour.
func WithMaxStop(d time.Duration) Option {
	return func(c *config) {
		if c.note("WithMaxStop", d >= time.Second, "WithMaxStop(%s): want at least 1s", d) {
			c.maxStop = d
		}
	}
}

// TooLateError says that a request was not sent, as the policy would allow it only after the end of the
// request's context, in more than a day, or never. It comes as a *TooLateError, and wraps [context.DeadlineExceeded].
type TooLateError struct {
	// RetryAfter is when the policy would allow it; 0 if nobody knows, as for a slot; [ginlimit.Never] if no waiting
	// helps, as a limit prohibits or never holds the tokens of its cost.
	RetryAfter time.Duration
}

func (e *TooLateError) Error() string {
	switch e.RetryAfter {
	case 0:
		return "ginlimit: the limit did not allow the request before its context ended"
	case ginlimit.Never:
		return "ginlimit: the limit never allows the request"
	}
	return fmt.Sprintf("ginlimit: the limit allows the request only in %s, later than it waits",
		e.RetryAfter.Round(time.Millisecond))
}

// Unwrap returns [context.DeadlineExceeded].
func (*TooLateError) Unwrap() error { return context.DeadlineExceeded }

// policyTraits are what a policy was made with.
type policyTraits = traits.Traits[ginlimit.Limit, *ginlimit.Reservation]

// transport is what [New] returns.
type transport struct {
	base     http.RoundTripper
	policy   *ginlimit.Policy
	has      policyTraits
	leased   bool // the policy takes tokens ahead: nothing is reserved, unless there are slots
	key      func(*http.Request) (string, error)
	cost     func(*http.Request) int
	settle   func(*http.Response) int
	maxStop  time.Duration
	stops    stops
	compared compared
	lowering lowering
	spare    sync.Pool // of *progress
}

const (
	// maxQueue and maxWait are how many requests of a key wait in a process, and for how long.
	maxQueue = 1 << 14
	maxWait  = 24 * time.Hour
	// defaultMaxStop is for how long one response can stop a key.
	defaultMaxStop = time.Hour
	// maxKeys is how many keys a process remembers as stopped, and how many as compared.
	maxKeys = 1 << 16
)

// New returns a transport that sends a request when the policy allows it; base is [http.DefaultTransport] if it
// is nil. Every attempt counts, also a retry of a client above, but not a retry inside the base.
//
// A request waits in its process in order of arrival for its tokens, and for a slot if the policy has
// [ginlimit.InFlight], which it holds until the response's body is closed or read to its end. It waits as long
// as its context lasts, and at most a day; if that is too short, it gets a [*TooLateError], at once where the time
// is known. A request that was not sent, as it was canceled or its connection could not be made, gives back what it
// took.
//
// A 429, a 503 with Retry-After, and a 403 with Retry-After or with no request left, stop the key in all
// processes until then, by [ginlimit.Policy.Block]: at once, or at the end of a lease that another process
// holds. After such a stop, a process that saw it sends one request, and the others wait up to ten seconds
// for its response. A response's fields may lower what the policy has left, if it has one rate, by at most
// what comes back in [WithMaxStop]: docs/guide.md lists them. They never raise it.
//
// The error joins all faults, each a [ginlimit.OptionError]: a nil policy, one without a rate, one
// [ginlimit.WithShares], WithBan or WithDryRun, and an option about requests that Gin serves, such as
// [ginlimit.WithSkip]. Such an option has no effect here if it is a default of the limiter. A default WithLease
// serves, but not beside [WithSettle].
func New(policy *ginlimit.Policy, base http.RoundTripper, opts ...Option) (http.RoundTripper, error) {
	t := &transport{base: base, key: byHost, maxStop: defaultMaxStop}
	if base == nil {
		t.base = http.DefaultTransport
	}
	c := config{transport: t, at: map[string]int{}}
	for c.index = range opts {
		if opt := opts[c.index]; opt != nil {
			opt(&c)
		} else {
			c.note("", false, "option %d is nil", c.index+1)
		}
	}
	c.adopt(policy)
	if c.errs != nil {
		return nil, errors.Join(c.errs...)
	}
	return t, nil
}

// byHost is the default of [WithKey].
func byHost(r *http.Request) (string, error) { return strings.ToLower(r.URL.Host), nil }

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	a := attempt{t: t, seen: t.progress()}
	defer t.spare.Put(a.seen)
	ctx := r.Context()
	defer a.leave() // also if a function of the policy panics
	if err := a.begin(ctx, r); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as http.RoundTripper wants it; the error would hide the other
		}
		return nil, err
	}
	var response *http.Response
	finished := false
	defer func() { // the base may panic, and a function of the policy
		if !finished {
			a.abandon(ctx, response)
		}
	}()
	trace := httptrace.ClientTrace{GetConn: a.seen.getConn, GotConn: a.seen.gotConn} // it may be changed
	a.seen.trace.Store(&trace)
	response, err := t.base.RoundTrip(r.WithContext(httptrace.WithClientTrace(ctx, &trace)))
	if err != nil || response == nil {
		a.fail(ctx, err)
	} else {
		a.answered(ctx, response)
	}
	finished = true
	return response, err
}

// CloseIdleConnections closes the idle connections of the base, for [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}
