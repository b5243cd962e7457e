//go:build integration

package web_test

import (
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestRefundGoesWhereItWasTaken loses Redis between a decision and its refund, and the other way round.
func TestRefundGoesWhereItWasTaken(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	var log testkit.Buffer
	limiter := testkit.NewLimiter(t, testkit.Connect(t, addr), ginlimit.WithFailureMode(ginlimit.FailLocal),
		ginlimit.WithTimeout(time.Second), // three of them are an outage
		ginlimit.WithReplicas(2), ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	limit := ginlimit.PerDay(8)
	told := func(what string) bool {
		_, err := limiter.Peek(t.Context(), "another", limit)
		require.NoError(t, err)
		last := strings.TrimSpace(log.String())
		return strings.Contains(last[strings.LastIndexByte(last, '\n')+1:], what)
	}
	freeze := func() { // and wait until nothing more is sent there
		require.NoError(t, process.Signal(syscall.SIGSTOP))
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return told("circuit breaker open") }))
	}
	resume := func() { // and wait until it is there to stay
		require.NoError(t, process.Signal(syscall.SIGCONT))
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return told("Redis is back") }))
	}
	everything := func(*gin.Context) bool { return true }
	during := func() {}
	r := testkit.Serve(limiter.Handler("n", limit, ginlimit.WithRefund(everything),
		ginlimit.WithCost(func(*gin.Context) int { return 3 })), func(*gin.Context) { during() })
	peek := func(source ginlimit.Source) (left int) {
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			r, err := limiter.Peek(t.Context(), ginlimit.Key("n", "192.0.2.1"), limit)
			left = r.Remaining
			return err == nil && r.Source == source
		}))
		return left
	}
	peek(ginlimit.FromRedis)
	testkit.Get(r, "/")
	assert.Equal(t, 8, peek(ginlimit.FromRedis))

	freeze()
	peek(ginlimit.FromLocal)
	during = func() { assert.Equal(t, 1, peek(ginlimit.FromLocal)); resume(); peek(ginlimit.FromRedis) }
	testkit.Get(r, "/") // taken locally, given back when Redis is there again
	assert.Equal(t, 8, peek(ginlimit.FromRedis))
	freeze()
	assert.Equal(t, 4, peek(ginlimit.FromLocal))
	resume()

	peek(ginlimit.FromRedis)
	during = func() {
		freeze()
		_, err := limiter.AllowN(t.Context(), ginlimit.Key("n", "192.0.2.1"), 4, limit)
		require.NoError(t, err)
	}
	testkit.Get(r, "/") // taken in Redis, which is down when it is given back
	assert.Equal(t, 0, peek(ginlimit.FromLocal), "not what Redis has taken")
	resume()
	assert.Equal(t, 5, peek(ginlimit.FromRedis), "nor is it asked for again")
}
