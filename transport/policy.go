package transport

import (
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

// config is a transport while [New] makes it.
type config struct {
	*transport
	index int            // of the option that is applied
	at    map[string]int // the indexes of the options
	errs  []error        // each a [ginlimit.OptionError]
}

const isNil = ": the function is nil"

// note notes where an option stands, and a fault unless it is ok. It returns ok.
func (c *config) note(option string, ok bool, format string, args ...any) bool {
	c.at[option] = c.index
	c.require(option, ok, format, args...)
	return ok
}

// require adds a fault of an option or a parameter unless ok.
func (c *config) require(option string, ok bool, format string, args ...any) {
	if ok {
		return
	}
	index, given := c.at[option]
	if !given {
		index = -1
	}
	text := fmt.Sprintf(format, args...)
	c.errs = append(c.errs, &ginlimit.OptionError{Index: index, Option: option,
		Err: fmt.Errorf("%w: transport: %s", ginlimit.ErrInvalidArgument, text)})
}

// adopt takes over the policy, or adds every reason why a transport cannot use it.
func (c *config) adopt(p *ginlimit.Policy) {
	has, made := p.Traits(traits.Key{})
	if !made {
		c.require("policy", false, "the policy was not made by Limiter.Policy")
		return
	}
	own := func(option string) bool { return slices.Contains(has.Options, option) }
	for _, option := range ginOptions {
		c.require("policy", !own(option.name), "%s is about requests that Gin serves; %s", option.name, option.instead)
	}
	const defaults = "leave it out, or make the policy by a limiter without that default"
	c.require("policy", !has.Bans, "WithBan would ban the key for a request that cannot wait; "+defaults)
	c.require("policy", !has.DryRun, "WithDryRun would let no request wait; "+defaults)
	c.require("WithSettle", c.settle == nil || !own("WithLease"),
		"WithSettle does not go together with WithLease; leave one of them out")
	if has.Shares {
		c.require("policy", false,
			"a policy WithShares cannot be stopped after a 429; give the transport a policy without it")
	} else if err := has.CheckBlock(time.Millisecond); err != nil {
		c.require("policy", has.LimitFunc, "after a 429 the policy stops no other process, as it counts no tokens; "+
			"give it a rate too, such as ginlimit.PerSecond(100)")
	} else if err := has.CheckBlock(c.maxStop); err != nil {
		c.require("WithMaxStop", has.LimitFunc, "WithMaxStop: %v", err)
	}
	c.policy, c.has = p, has
	c.leased = has.Leases && c.settle == nil // what is taken ahead cannot be settled
}
