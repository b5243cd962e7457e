package faults_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// lateHook is a hook that reads a value of each command's context, and again and again when the command is done.
type lateHook struct {
	first []any
	late  sync.WaitGroup
	over  atomic.Bool
}

func (*lateHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *lateHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			h.first = append(h.first, ctx.Value("span"))
			h.late.Go(func() {
				for !h.over.Load() {
					ctx.Value("span")
					runtime.Gosched()
				}
			})
		}
		return next(ctx, cmd)
	}
}

func (*lateHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestAContextOfGinIsNotReadAfterItsRequest, as Gin uses it for another one. The race detector looks.
func TestAContextOfGinIsNotReadAfterItsRequest(t *testing.T) {
	for _, timeout := range []time.Duration{ginlimit.DefaultTimeout, time.Minute} { // the second has goroutines send
		testkit.RunInBubble(t, timeout.String(), func(t *testing.T, b *testkit.Bubble) {
			hook := &lateHook{}
			b.Redis.AddHook(hook)
			p, err := testkit.NewLimiter(t, b.Redis, ginlimit.WithTimeout(timeout)).Policy("api", ginlimit.PerHour(100))
			require.NoError(t, err)
			r := gin.New()
			var want []any
			r.GET("/", func(c *gin.Context) {
				c.Set("span", len(want))
				want = append(want, len(want))
				ctx, cancel := context.WithCancel(c)
				defer cancel()
				_, err := p.Allow(ctx, "alice")
				assert.NoError(t, err)
			})
			for range 20 {
				r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
			}
			hook.over.Store(true)
			hook.late.Wait()
			require.Equal(t, want, hook.first)
		})
	}
}

// spanKey is the key of a value of a request's context.
type spanKey struct{}

// valueHook is a hook that reads values of the contexts of scripts.
type valueHook struct {
	lateHook
	seen [][2]any
}

func (h *valueHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			h.seen = append(h.seen, [2]any{ctx.Value("user"), ctx.Value(spanKey{})})
		}
		return next(ctx, cmd)
	}
}

// TestAWaitByAContextOfGinEndsWithItsRequest, although the context of Gin does not end. Hooks find the values of both.
func TestAWaitByAContextOfGinEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(ctx context.Context, p *ginlimit.Policy) error{
		"Wait": func(ctx context.Context, p *ginlimit.Policy) error { return p.Wait(ctx, "alice") },
		"Reserve": func(ctx context.Context, p *ginlimit.Policy) error {
			return testkit.Err(p.Reserve(ctx, "alice", 1))
		},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			hook := &valueHook{}
			b.Redis.AddHook(hook)
			p := testkit.NewPolicy(t, testkit.NewLimiter(t, b.Redis), "api", ginlimit.PerHour(1),
				ginlimit.WithQueue(1, 2*time.Hour))
			r := gin.New()
			r.GET("/", func(c *gin.Context) {
				c.Set("user", "alice")
				assert.NoError(t, wait(c, p))
				assert.ErrorIs(t, wait(c, p), context.Canceled)
			})
			start := time.Now()
			ctx, leave := context.WithCancel(context.WithValue(t.Context(), spanKey{}, "span"))
			time.AfterFunc(time.Minute, leave)
			r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			require.Equal(t, time.Minute, time.Since(start))
			require.Equal(t, [2]any{"alice", "span"}, hook.seen[0])
		})
	}
}

// migrate has the hash slots of all keys migrate, until the function returned is called: Redis answers
// TRYAGAIN to a script of several keys, and decides by a script of one.
func migrate(b *testkit.Bubble) (end func()) {
	b.Mini.Server().SetPreHook(func(peer *server.Peer, command string, args ...string) bool {
		if !strings.HasPrefix(command, "EVAL") || args[1] == "0" || args[1] == "1" {
			return false
		}
		peer.WriteError("TRYAGAIN Multiple keys request during rehashing of slot")
		return true
	})
	return func() { b.Mini.Server().SetPreHook(nil) }
}

// TestAHashSlotThatMigrates: Redis decides on one key, and the failure mode on several, which are
// charged nothing in Redis. No breaker opens. A line a minute says why.
func TestAHashSlotThatMigrates(t *testing.T) {
	for name, row := range map[string]struct {
		failure ginlimit.FailureMode
		source  ginlimit.Source
		err     error
	}{
		"local":  {ginlimit.FailLocal, ginlimit.FromLocal, nil},
		"open":   {ginlimit.FailOpen, ginlimit.FromOpen, nil},
		"closed": {ginlimit.FailClosed, ginlimit.FromRedis, ginlimit.ErrUnavailable},
	} {
		testkit.RunInBubble(t, name, func(t *testing.T, b *testkit.Bubble) {
			l, log := testkit.LoggedLimiter(t, b.Connect(t), ginlimit.WithFailureMode(row.failure))
			one := testkit.NewPolicy(t, l, "one", ginlimit.PerHour(10))
			for kind, option := range map[string]ginlimit.PolicyOption{
				"limits": ginlimit.PerDay(20), "ban": ginlimit.WithBan(time.Hour, time.Hour),
			} {
				several := testkit.NewPolicy(t, l, kind, ginlimit.PerHour(10), option)
				left := func(n int) {
					t.Helper()
					r := testkit.Must(several.Peek(t.Context(), "alice"))
					require.Equal(t, ginlimit.FromRedis, r.Source)
					require.Equal(t, n, r.Remaining, kind)
				}
				before := testkit.Must(several.Reserve(t.Context(), "alice", 3))
				end := migrate(b)
				for range 5 {
					r, err := several.Reserve(t.Context(), "alice", 1)
					require.ErrorIs(t, err, row.err)
					require.Equal(t, row.source, r.Result().Source)
					require.Equal(t, row.err == nil, r.Result().Allowed)
					require.Equal(t, ginlimit.FromRedis, testkit.Must(one.Allow(t.Context(), kind)).Source)
				}
				require.ErrorIs(t, before.Cancel(t.Context()), ginlimit.ErrUnavailable)
				require.ErrorIs(t, several.Refund(t.Context(), "alice", 1), ginlimit.ErrUnavailable)
				end()
				left(7)
				require.NoError(t, several.Refund(t.Context(), "alice", 3))
				left(10)
			}
			require.Nil(t, l.Stats().Transitions)
			require.Equal(t, 1, strings.Count(log.String(), "code=TRYAGAIN"), log)
		})
	}
}
