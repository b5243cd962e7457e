package lease

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOneFlightAtATime takes tokens ahead. Others are told of it, until it has ended.
func TestOneFlightAtATime(t *testing.T) {
	for name, end := range map[string]func(f *fixture, trip *Trip) error{
		"an answer": func(f *fixture, trip *Trip) error { f.end(trip); return nil },
		"an error": func(_ *fixture, trip *Trip) error {
			err := errors.New("Redis is away")
			trip.Fail(err)
			return err
		},
		"a panic": func(_ *fixture, trip *Trip) error {
			err := errors.New("a hook")
			func() {
				defer func() { _ = recover() }()
				defer trip.Fail(err)
				panic(1)
			}()
			return err
		},
		"the goroutine's end": func(_ *fixture, trip *Trip) error {
			err := errors.New("a hook")
			done := make(chan bool)
			go func() {
				defer close(done)
				defer trip.Fail(err)
				runtime.Goexit()
			}()
			<-done
			return err
		},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			f := newFixture(t)
			f.want(9)
			first := f.begin()
			require.Nil(t, first.Other())
			second := f.begin()
			flight := second.Other()
			require.NotNil(t, flight)
			require.Same(t, flight, f.begin().Other())
			select {
			case <-flight.Done:
				t.Error("it is in flight")
			default:
			}
			want := end(f, first)
			<-flight.Done
			require.Equal(t, want, flight.Err)
			first.Fail(errors.New("too late"))
			require.Equal(t, want, flight.Err, "it ends once")
			require.Nil(t, f.begin().Other())
		})
	}
}

// TestACallWithoutALeaseWaitsForNobody, nor does anybody for it.
func TestACallWithoutALeaseWaitsForNobody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := newFixture(t)
		f.want(0)
		first := f.begin()
		f.want(9)
		second := f.begin()
		require.Nil(t, second.Other())
		require.True(t, second.TakesAhead())
		f.end(first)
		require.NotNil(t, f.begin().Other(), "the second one is in flight")
	})
}
