package transport

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/traits"
)

// ginOptions are about requests that Gin serves: on a policy of its own each is a fault, with a way out. As a
// limiter's default it has no effect here.
var ginOptions = []struct{ name, instead string }{
	{"WithKey", "give New a transport.WithKey"},
	{"WithCost", "give New a transport.WithCost"},
	{"WithSettle", "give New a transport.WithSettle"},
	{"WithRefund", "give New a transport.WithSettle"},
	{"WithQueue", "leave it out, and give requests a deadline"},
	{"WithSkip", "leave it out, and send what it skips by another client"},
	{"WithAllowList", "leave it out, and send what it lists by another client"},
	{"WithDenyList", "leave it out, and do not send what it lists"},
	{"WithHeaders", "leave it out"},
	{"WithHeaderFunc", "leave it out"},
	{"WithDeniedHandler", "leave it out"},
	{"WithErrorHandler", "leave it out"},
}

// adopt takes over the policy, or reports every reason why a transport cannot use it.
func (t *transport) adopt(p *ginlimit.Policy) error {
	has, made := p.Traits(traits.Key{})
	if !made {
		return invalid("the policy was not made by Limiter.Policy")
	}
	own := func(option string) bool { return slices.Contains(has.Options, option) }
	var errs []error
	forbid := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, invalid(format, args...))
		}
	}
	for _, option := range ginOptions {
		forbid(own(option.name), "%s is about requests that Gin serves; %s", option.name, option.instead)
	}
	const defaults = "leave it out, or make the policy by a limiter without that default"
	forbid(has.Bans, "WithBan would ban the key for a request that cannot wait; "+defaults)
	forbid(has.DryRun, "WithDryRun would let no request wait; "+defaults)
	forbid(t.settle != nil && own("WithLease"), "WithSettle does not go together with WithLease; leave one of them out")
	if has.Shares {
		forbid(true, "a policy WithShares cannot be stopped after a 429; give the transport a policy without it")
	} else if err := has.CheckBlock(time.Millisecond); err != nil && !has.LimitFunc {
		forbid(true, "after a 429 the policy stops no other process, as it counts no tokens; give it a rate too, "+
			"such as ginlimit.PerSecond(100)")
	} else if err := has.CheckBlock(t.maxStop); err != nil && !has.LimitFunc {
		forbid(true, "WithMaxStop: %v", err)
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	t.policy, t.has = p, has
	t.leased = has.Leases && t.settle == nil // what is taken ahead cannot be settled
	return nil
}

// invalid returns a [ginlimit.ErrInvalidArgument].
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: transport: %s", ginlimit.ErrInvalidArgument, fmt.Sprintf(format, args...))
}
