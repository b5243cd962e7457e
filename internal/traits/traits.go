// Package traits says what a policy was made with, to packages of this module that are built on its public
// API. It owns nothing but that door, and must never know a policy's type, Gin or Redis.
//
// Of and Hashes are the package variables that are set: by the root's init, once, as these packages import the
// root and it cannot import them. An exported method would be a public name for what only they need.
package traits

import (
	"context"
	"errors"
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

	// Lower takes tokens of a client, and no slot, in one step for all processes. The function to gets the
	// client's ginlimit.Limit, and returns how many tokens must stay and how many are taken at most. A client
	// with several limits is left alone.
	Lower func(ctx context.Context, client string, to func(limit any) (stay, most int)) error

	// Later calls f in the background, and Close of the limiter waits for it. f gets a context that ends, and a panic
	// ends f alone. It is false, and f is not called, if the limiter is closed.
	Later func(f func(context.Context)) bool

	// Reserve is Reserve and returns its *ginlimit.Reservation, and Wait is WaitN, of a request that waits as a
	// Waiting says.
	Reserve func(ctx context.Context, client string, n int, w Waiting) (reservation any, err error)
	Wait    func(ctx context.Context, client string, n int, w Waiting) error
}

// Waiting is how a request waits.
type Waiting struct {
	Since  time.Time     // when it came: it stands before those that came later
	Most   time.Duration // it waits no longer
	Length int           // of the queue, for Reserve
	Leaves func() bool   // asked before each try, and when the key was changed: then its error is ErrLeft
}

// ErrLeft is the error of a request that left its line, as Leaves wanted.
var ErrLeft = errors.New("ginlimit: the request left its line")

// Hashes is a ginlimit.LimiterOption for the tool: methods of policies take the hash of a client, as it stands in
// Redis, in place of the client.
var Hashes any

// Of returns the traits of a *ginlimit.Policy, or false for one that was not made by its constructor.
var Of func(policy any) (Traits, bool)
