package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// events collects what an observer sees.
type events struct {
	mu  sync.Mutex
	all []ginlimit.Event
}

func (e *events) observe(_ context.Context, event ginlimit.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
}

// take returns what was seen since, without how long it took, which is more than nothing, and without what depends on
// it.
func (e *events) take(t *testing.T) []ginlimit.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.all
	e.all = nil
	for i := range all {
		assert.Positive(t, all[i].Duration)
		all[i].Duration, all[i].ResetAfter = 0, 0
	}
	return all
}

// TestObserverSeesAWaitOnce: one Event when it ends, however often it has tried.
func TestObserverSeesAWaitOnce(t *testing.T) {
	t.Parallel()
	limit := ginlimit.PerSecond(1)
	for name, row := range map[string]struct {
		wait func(t *testing.T, l *testkit.Limiter) // on a bucket that is empty
		want ginlimit.Event
	}{
		"until there is a token": {func(t *testing.T, l *testkit.Limiter) {
			require.NoError(t, l.Wait(t.Context(), "k", limit))
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: limit,
			ResetAfter: time.Second,
			Source:     ginlimit.FromLocal, Cost: 1, Charged: 1, Duration: time.Second, Waited: time.Second}},
		"until its context ends": {func(t *testing.T, l *testkit.Limiter) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(500*time.Millisecond, cancel)
			require.ErrorIs(t, l.Wait(ctx, "k", limit), context.Canceled)
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeFailed, Limit: limit, Source: ginlimit.FromPolicy,
			ResetAfter: time.Second, Cost: 1, Duration: 500 * time.Millisecond, Waited: 500 * time.Millisecond,
			Reason: "canceled"}},
		"not at all before the deadline": {func(t *testing.T, l *testkit.Limiter) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, l.Wait(ctx, "k", limit), context.DeadlineExceeded)
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeFailed, Limit: limit, Source: ginlimit.FromPolicy,
			ResetAfter: time.Second, Cost: 1, Reason: "deadline"}},
		"until the limiter is closed": {func(t *testing.T, l *testkit.Limiter) {
			time.AfterFunc(500*time.Millisecond, func() { _ = l.Close() })
			require.ErrorIs(t, l.Wait(t.Context(), "k", limit), ginlimit.ErrUnavailable)
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeFailed, Limit: limit, Source: ginlimit.FromPolicy,
			ResetAfter: time.Second, Cost: 1, Duration: 500 * time.Millisecond, Waited: 500 * time.Millisecond,
			Reason: "closed"}},
		"with a context that has ended": {func(t *testing.T, l *testkit.Limiter) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			require.ErrorIs(t, l.Wait(ctx, "k", limit), context.Canceled)
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeFailed, Source: ginlimit.FromPolicy,
			Cost: 1, Reason: "canceled"}},
		"in vain": {func(t *testing.T, l *testkit.Limiter) {
			require.ErrorIs(t, l.Wait(t.Context(), "k", ginlimit.PerSecond(0)), ginlimit.ErrInvalidArgument)
		}, ginlimit.Event{Name: "test", Outcome: ginlimit.OutcomeDenied, Cause: ginlimit.CauseNever,
			Limit: ginlimit.PerSecond(0), Source: ginlimit.FromPolicy, Cost: 1}},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			seen := &events{}
			limiter := testkit.NewLocal(t, ginlimit.WithObserver(seen.observe))
			require.NoError(t, limiter.Wait(t.Context(), "k", limit))
			synctest.Wait()
			seen.all = nil
			row.wait(t, limiter)
			synctest.Wait()
			require.Equal(t, []ginlimit.Event{row.want}, seen.all)
		})
	}
}

func TestObserversAddUp(t *testing.T) {
	t.Parallel()
	var first, second, third events
	both := testkit.NewLocal(t, ginlimit.WithObserver(first.observe), ginlimit.WithObserver(second.observe))
	one := testkit.NewLocal(t, ginlimit.WithObserver(third.observe))
	p := testkit.NewPolicy(t, both, "p", ginlimit.PerDay(3), testkit.ByUser())
	require.Equal(t, http.StatusOK, testkit.Get(testkit.Serve(p.Handler()), "/", testkit.User("u")).Code)
	testkit.Must(p.AllowN(t.Context(), "u", 2))
	testkit.Must(p.AllowUpTo(t.Context(), "u", 2))
	require.ErrorIs(t, p.WaitN(t.Context(), "u", 4), ginlimit.ErrInvalidArgument)
	testkit.Must(both.Allow(t.Context(), "u", ginlimit.PerDay(1)))
	testkit.Must(p.Peek(t.Context(), "u"))
	require.NoError(t, errors.Join(p.Refund(t.Context(), "u", 1), p.Block(t.Context(), "u", time.Hour),
		p.Reset(t.Context(), "u")))
	require.Error(t, testkit.Err(p.Allow(t.Context(), "")))
	testkit.Must(one.Allow(t.Context(), "u", ginlimit.PerDay(1)))
	want := []ginlimit.Event{
		{Name: "p", Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: ginlimit.PerDay(3),
			Remaining: 2, Source: ginlimit.FromLocal, Cost: 1, Charged: 1},
		{Name: "p", Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: ginlimit.PerDay(3),
			Source: ginlimit.FromLocal, Cost: 2, Charged: 2},
		{Name: "p", Outcome: ginlimit.OutcomeDenied, Cause: ginlimit.CauseRate, Limit: ginlimit.PerDay(3),
			Source: ginlimit.FromLocal, Cost: 2},
		{Name: "p", Outcome: ginlimit.OutcomeDenied, Cause: ginlimit.CauseNever, Limit: ginlimit.PerDay(3),
			Source: ginlimit.FromLocal, Cost: 4},
		{Name: "test", Outcome: ginlimit.OutcomeAllowed, Allowed: true, Limit: ginlimit.PerDay(1),
			Source: ginlimit.FromLocal, Cost: 1, Charged: 1},
	}
	require.Equal(t, want, first.take(t))
	require.Equal(t, want, second.take(t))
	require.Equal(t, want[4:], third.take(t))

	_, err := ginlimit.NewLocal(ginlimit.WithObserver(first.observe), ginlimit.WithObserver(nil))
	require.ErrorContains(t, err, "WithObserver: the function is nil")
}

// TestClientObserverSeesTheClient: by its key as the key function returned it, also with a secret, or "" if
// nobody has found one.
func TestClientObserverSeesTheClient(t *testing.T) {
	t.Parallel()
	var seen []string
	note := ginlimit.WithClientObserver(func(_ context.Context, e ginlimit.Event, client string) {
		seen = append(seen, e.Name+" "+e.Outcome.String()+" "+client)
	})
	want := func(events ...string) {
		t.Helper()
		require.Equal(t, events, seen)
		seen = nil
	}
	for name, l := range map[string]*testkit.Limiter{
		"in process": testkit.NewLocal(t, note, testkit.ByUser()),
		"with a secret": testkit.WithoutRedis(t, note, testkit.ByUser(),
			ginlimit.WithKeySecret([]byte("sixteen bytes..."))),
	} {
		t.Run(name, func(t *testing.T) {
			p := testkit.NewPolicy(t, l, "p", ginlimit.PerDay(1),
				ginlimit.WithSkip(func(c *gin.Context) bool { return c.GetHeader("Skip") != "" }))
			slots := testkit.NewPolicy(t, l, "slots", ginlimit.InFlight(1))
			app := testkit.Serve(p.Handler())
			testkit.Get(app, "/", testkit.User("a|b"))
			testkit.Get(app, "/", testkit.User("a|b"))
			testkit.Get(app, "/", testkit.User("c"), testkit.With("Skip", "1"))
			testkit.Get(app, "/")
			want("p allowed a|b", "p denied a|b", "p skipped ", "p failed ")
			testkit.Must(p.Allow(t.Context(), "d"))
			require.ErrorIs(t, p.WaitN(t.Context(), "e", 2), ginlimit.ErrInvalidArgument)
			want("p allowed d", "p denied e")
			r := testkit.Must(ginlimit.ReserveAll(t.Context(), ginlimit.Charge{Policy: p, Client: "f", N: 1},
				ginlimit.Charge{Policy: slots, Client: "g", N: 1}))
			r.Release()
			want("p allowed f", "slots allowed g")
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, p.Wait(ended, "h"))
			want("p failed h")
		})
	}
}

// What the log says. Why Redis is away is in tests/faults/ping_test.go.

// jsonLog is a log of lines in JSON.
func jsonLog() (*testkit.Buffer, ginlimit.LimiterOption) {
	log := &testkit.Buffer{}
	return log, ginlimit.WithLogger(slog.New(slog.NewJSONHandler(log, nil)))
}

// TestLogsInJSONHaveDurationsAsText: slog writes a time.Duration as nanoseconds there.
func TestLogsInJSONHaveDurationsAsText(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		log, logger := jsonLog()
		limiter := testkit.NewLimiter(t, b.Redis, ginlimit.WithTimeout(50*time.Millisecond), logger)
		b.Late.Store(true)
		for range 5 {
			require.ErrorIs(t, testkit.Err(limiter.Allow(t.Context(), "k", ginlimit.PerHour(1))), ginlimit.ErrUnavailable)
		}
		time.Sleep(3 * time.Second)
		b.Late.Store(false)
		time.Sleep(10 * time.Second)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		require.Len(t, lines, 2, log)
		var back struct {
			Message string `json:"msg"`
			After   string
		}
		require.NoError(t, json.Unmarshal([]byte(lines[1]), &back))
		require.Equal(t, "ginlimit: Redis is back", back.Message)
		after := testkit.Must(time.ParseDuration(back.After))
		require.InDelta(t, 3*time.Second, after, float64(2*time.Second))
		require.Equal(t, after.Round(time.Millisecond), after)
	})
}

// TestFaultsOfTheApplicationAreLogged once a minute for each policy: what the default handler
// answers 500, and a dry run would.
func TestFaultsOfTheApplicationAreLogged(t *testing.T) {
	t.Parallel()
	const client = "alice@example.org"
	errOwn, hour := errors.New(client), ginlimit.PerHour(1000)
	key := func(key string, err error) ginlimit.Option {
		return ginlimit.WithKey(func(*gin.Context) (string, error) { return key, err })
	}
	limits := func(err error) ginlimit.PolicyOption {
		return ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) { return nil, err })
	}
	answers := func(status int) ginlimit.Option {
		return ginlimit.WithErrorHandler(func(c *gin.Context, _ error) { c.AbortWithStatus(status) })
	}
	type options = []ginlimit.PolicyOption
	for name, row := range map[string]struct {
		options options
		reason  string // "" is no line
		named   string // what the line ends with
	}{
		"no key":     {options{hour, key("", nil)}, "no_key", ""},
		"no address": {options{hour}, "no_key", ""},
		"no address for a list": {options{hour, ginlimit.WithAllowList(netip.MustParsePrefix(
			"203.0.113.0/24")), key(client, nil)}, "no_key", ""},
		"a key function fails": {options{hour, key(client, errOwn)}, "key_func", ""},
		"no limits":            {options{key(client, nil), limits(nil)}, "invalid_argument", ""},
		"two limits of a period": {options{key(client, nil), testkit.LimitsFrom(hour, hour.WithBurst(7))},
			"invalid_argument", `,"limits":"1000/h, 1000/h burst 7"`},
		"a dry run":                  {options{hour, key("", nil), ginlimit.WithDryRun()}, "no_key", ""},
		"a handler that answers 500": {options{hour, key("", nil), answers(500)}, "no_key", ""},
		"a handler that does not":    {options{hour, key("", nil), answers(401)}, "", ""},
		"a malformed key":            {options{hour, key("", ginlimit.ErrBadRequest)}, "", ""},
		"a negative cost": {options{hour, key(client, nil),
			ginlimit.WithCost(func(*gin.Context) int { return -1 })}, "invalid_argument", ""},
		"plans are unavailable, answered 500": {options{key(client, nil), limits(ginlimit.ErrUnavailable), answers(500)},
			"", ""},
		"an unknown client": {options{key(client, nil), limits(ginlimit.ErrUnknownClient)}, "", ""},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			log, logger := jsonLog()
			limiter := testkit.Must(ginlimit.NewLocal(logger))
			defer limiter.Close()
			router := gin.New()
			require.NoError(t, router.SetTrustedProxies(nil))
			router.GET("/users/:user", limiter.Handler("search", row.options...))
			for range 3 { // two lines: at 0 and 60 s
				for range 10 {
					r := httptest.NewRequest(http.MethodGet, "/users/"+client, nil)
					r.RemoteAddr = "@"
					router.ServeHTTP(httptest.NewRecorder(), r)
				}
				time.Sleep(30 * time.Second)
			}
			require.NotContains(t, log.String(), client)
			if row.reason == "" {
				require.Empty(t, log.String())
				return
			}
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			require.Len(t, lines, 2)
			for _, line := range lines {
				_, rest, _ := strings.Cut(line, `,"level":`)
				require.Equal(t,
					fmt.Sprintf(`"WARN","msg":"ginlimit: the application gives a request no usable key, limits or cost",`+
						`"name":"search","route":"/users/:user","reason":%q%s}`, row.reason, row.named), rest)
			}
		})
	}
}

// loggedLocal returns a limiter without Redis, and its log.
func loggedLocal(t *testing.T) (*testkit.Limiter, *testkit.Buffer) {
	t.Helper()
	log := &testkit.Buffer{}
	return testkit.NewLocal(t, ginlimit.WithLogger(slog.New(slog.NewTextHandler(log, nil)))), log
}
