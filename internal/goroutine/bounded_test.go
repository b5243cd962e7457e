package goroutine

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBounded: what a function of the application does reaches its caller, in time.
func TestBounded(t *testing.T) {
	errDown := errors.New("down")
	takes := func(d time.Duration, err error) func() (int, error) {
		return func() (int, error) { time.Sleep(d); return 1, err }
	}
	for name, row := range map[string]struct {
		f     func() (int, error)
		want  int
		err   error
		took  time.Duration
		grace time.Duration
	}{
		"returns":           {takes(time.Second-1, errDown), 1, errDown, time.Second - 1, 0},
		"panics":            {func() (int, error) { panic("x") }, 0, ErrPanic, 0, 0},
		"ends":              {func() (int, error) { runtime.Goexit(); return 1, nil }, 0, ErrGoexit, 0, 0},
		"hangs":             {takes(time.Hour, nil), 0, context.DeadlineExceeded, time.Second, 0},
		"returns in grace":  {takes(time.Second+1, nil), 0, context.DeadlineExceeded, time.Second + 1, 2},
		"hangs after grace": {takes(time.Hour, nil), 0, context.DeadlineExceeded, time.Second + 2, 2},
	} {
		inBubbleRun(t, name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			got, err := Bounded(ctx, row.grace, row.f)
			require.Equal(t, row.want, got)
			require.Equal(t, row.err, err)
			require.Equal(t, row.took, time.Since(start))
			time.Sleep(time.Hour)
		})
	}
}
