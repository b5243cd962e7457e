// Package traits says what a policy was made with, to packages of this module that are built on its public API.
package traits

import (
	"context"
	"time"
)

// Traits are what a policy was made with.
type Traits struct {
	Options    []string                  // of its own, such as "WithSkip", without its limiter's defaults
	Shares     bool                      // its tenants share a limit
	Bans       bool                      // its denials ban
	DryRun     bool                      // its denials deny nobody
	LimitFunc  bool                      // a function returns a client's limits
	Leases     bool                      // it takes tokens ahead
	CheckBlock func(time.Duration) error // why a client without limits of its own cannot be blocked for so long

	// Lower takes tokens of a client down to a number that stays, at most so many and no slot, in one step for all
	// processes. It asks to for both numbers, with the client's ginlimit.Limit, unless the client has several.
	Lower func(ctx context.Context, client string, to func(limit any) (stay, most int)) error
}

// Of returns the traits of a *ginlimit.Policy, or false for one that was not made by its constructor. The root sets it
// before anybody can have a policy.
var Of func(policy any) (Traits, bool)
