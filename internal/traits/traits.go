// Package traits says what a policy was made with, to packages of this module that are built on its public
// API. It must never know Gin or Redis.
package traits

import (
	"context"
	"errors"
	"time"
)

// Key is an argument that only packages of this module can name, of methods that are for them alone.
type Key struct{}

// Traits are what a policy was made with, in the root's types.
type Traits[Limit, Reservation any] struct {
	Options    []string                  // of its own, such as "WithSkip", without its limiter's defaults
	Shares     bool                      // its tenants share a limit
	Bans       bool                      // its denials ban
	DryRun     bool                      // its denials deny nobody
	LimitFunc  bool                      // a function returns a client's limits
	Leases     bool                      // it takes tokens ahead
	CheckBlock func(time.Duration) error // why a client without limits of its own cannot be blocked for so long

	// Lower takes tokens of a client, and no slot, in one step for all processes. The function to gets the
	// client's limit, and returns how many tokens must stay and how many are taken at most. A client with
	// several limits is left alone.
	Lower func(ctx context.Context, client string, to func(Limit) (floor, limit int)) error

	// Later calls f in the background, and Close of the limiter waits for it. f gets a context that ends, and a panic
	// ends f alone. It is false, and f is not called, if the limiter is closed.
	Later func(f func(context.Context)) bool

	// Override returns the limits that override a client's, or nil. It is for a request that waits: a process in which
	// one does is not idle.
	Override func(client string) []Limit

	// Reserve is Reserve, and Wait is WaitN, of a request that waits as a Waiting says.
	Reserve func(ctx context.Context, client string, n int, w Waiting) (Reservation, error)
	Wait    func(ctx context.Context, client string, n int, w Waiting) error
}

// Limiter is what a limiter does for the tools of operators, in the root's types.
type Limiter[Limit, Override, Entry, Loss any] struct {
	// TakeHashes has clients given as the hashes that Redis has of them.
	TakeHashes func()

	// CheckOverrides returns what is wrong with overrides, and CheckBlock why limits cannot be blocked for so long, as
	// the methods that make them do.
	CheckOverrides func(ctx context.Context, all []Override) error
	CheckBlock     func(limits []Limit, d time.Duration) error

	// BucketID is what the key of a limit's bucket ends with, of a calendar quota that of now.
	BucketID func(Limit) string

	// Overrides lists the overrides in force, in no order, and Read reads some of them.
	Overrides func(ctx context.Context) ([]Entry, error)
	Read      func(some []Entry) ([]Override, error)

	// Loss returns the last loss of Redis' data that this process noticed.
	Loss func() Loss
}

// Waiting is how a request waits.
type Waiting struct {
	Since  time.Time     // when it came: it stands before those that came later
	Max    time.Duration // it waits no longer
	Length int           // of the queue, for Reserve
	Leaves func() bool   // asked before each try, and when the key was changed: then its error is ErrLeft
}

// ErrLeft is the error of a request that left its line, as Leaves wanted.
var ErrLeft = errors.New("ginlimit: the request left its line")
