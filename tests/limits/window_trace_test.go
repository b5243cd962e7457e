package limits_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

const windowTraceSteps = 5000

func TestWindowTraceEqualsModelOnMiniredis(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		for seed := range uint64(traceSeeds / 2) {
			t.Run(fmt.Sprintf("%s, seed %d", a, seed), func(t *testing.T) {
				t.Parallel()
				testkit.MiniredisEngine(t, a).Follow(t, seed,
					testkit.WindowTrace(seed, testkit.Steps(windowTraceSteps/2)/testkit.TraceShare),
					testkit.NewWindowModel(a), ginlimit.FromRedis)
			})
		}
	}
}

func TestWindowTraceEqualsModelInProcess(t *testing.T) {
	t.Parallel()
	for _, a := range testkit.WindowAlgorithms {
		for seed := range uint64(traceSeeds) {
			t.Run(fmt.Sprintf("%s, seed %d", a, seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					testkit.LocalEngine(t, a).Follow(t, seed, testkit.WindowTrace(seed, testkit.Steps(windowTraceSteps)),
						testkit.NewWindowModel(a), ginlimit.FromLocal)
				})
			})
		}
	}
}
