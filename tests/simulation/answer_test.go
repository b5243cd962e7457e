package simulation_test

import (
	"fmt"
	"time"

	"github.com/ginlimit/ginlimit"
)

// simAnswer is what a call was answered.
type simAnswer struct {
	simCall
	version    int
	start, end time.Time
	result     ginlimit.Result
	err        error
	ended      bool       // the caller's context
	room       bool       // FromMemory: the server had room for it
	closed     bool       // Close had been called before the answer
	before     *simAnswer // the denial after which it waited RetryAfter; or what it settles

	reservation *ginlimit.Reservation // to be settled
}

func (a *simAnswer) says() string {
	if a.err != nil {
		return a.err.Error()
	}
	if !a.decides() {
		return "done"
	}
	return fmt.Sprintf("%+v", a.result)
}

// decides reports whether the answer is a Result.
func (a *simAnswer) decides() bool { return a.err == nil && a.result != (ginlimit.Result{}) }

// kind is where the answer comes from.
func (a *simAnswer) kind() string {
	switch {
	case a.err != nil:
		return "error"
	case !a.decides():
		return "done"
	}
	return a.result.Source.String()
}
