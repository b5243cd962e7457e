// Package goroutine runs functions of the application and of its Redis client so that one that hangs,
// panics, ends its goroutine or keeps a context harms nobody but its caller. It knows nothing of what they do.
package goroutine

import (
	"context"
	"errors"
	"time"
)

// EndGrace is how long a function that is to end with its context may take for that.
const EndGrace = 50 * time.Millisecond

// Errors of a function that does not return.
var (
	ErrPanic  = errors.New("panic")
	ErrGoexit = errors.New("goexit")
)

// Outcome is what a function has returned.
type Outcome[T any] struct {
	Value T
	Err   error
}

// Isolate calls f, a function of the application, in a goroutine of its own and sends what it
// returns. If f panics or ends its goroutine, the outcome is [ErrPanic] or [ErrGoexit].
func Isolate[T any](f func() (T, error)) <-chan Outcome[T] {
	done := make(chan Outcome[T], 1)
	go func() {
		out := Outcome[T]{Err: ErrGoexit}
		defer func() {
			if recover() != nil {
				out.Err = ErrPanic
			}
			done <- out
		}()
		out.Value, out.Err = f()
	}()
	return done
}

// Bounded is Isolate, but returns the context's error if that ends first: when f has returned too,
// or a grace later. Then f goes on by itself.
func Bounded[T any](ctx context.Context, grace time.Duration, f func() (T, error)) (T, error) {
	done := Isolate(f)
	select {
	case out := <-done:
		return out.Value, out.Err
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(grace):
	}
	var none T
	return none, ctx.Err()
}
