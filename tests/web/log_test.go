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
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What the log says. Why Redis is away is in ping_test.go.

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
		"no key":                    {options{hour, key("", nil)}, "no_key", ""},
		"no address":                {options{hour}, "no_key", ""},
		"no parameter in the route": {options{hour, ginlimit.WithKey(ginlimit.ByParam("id"))}, "no_key", ""},
		"no address for a list": {options{hour, ginlimit.WithAllowList(netip.MustParsePrefix(
			"203.0.113.0/24")), key(client, nil)}, "no_key", ""},
		"a key function fails":   {options{hour, key(client, errOwn)}, "key_func", ""},
		"a limit function fails": {options{key(client, nil), limits(errOwn)}, "limit_func", ""},
		"no limits":              {options{key(client, nil), limits(nil)}, "invalid_argument", ""},
		"two limits of a period": {options{key(client, nil), testkit.LimitsFrom(hour, hour.WithBurst(7))},
			"invalid_argument", `,"limits":"1000/h, 1000/h burst 7"`},
		"a dry run":                  {options{hour, key("", nil), ginlimit.WithDryRun()}, "no_key", ""},
		"a handler that answers 500": {options{hour, key("", nil), answers(500)}, "no_key", ""},
		"a handler that does not":    {options{hour, key("", nil), answers(401)}, "", ""},
		"a malformed key":            {options{hour, key("", ginlimit.ErrBadRequest)}, "", ""},
		"a negative cost": {options{hour, key(client, nil),
			ginlimit.WithCost(func(*gin.Context) int { return -1 })}, "invalid_argument", ""},
		"a malformed key in a dry run":        {options{hour, key("", ginlimit.ErrBadRequest), ginlimit.WithDryRun()}, "", ""},
		"plans are unavailable, answered 500": {options{key(client, nil), limits(ginlimit.ErrUnavailable), answers(500)}, "", ""},
		"an unknown client":                   {options{key(client, nil), limits(ginlimit.ErrUnknownClient)}, "", ""},
		"plans are unavailable":               {options{key(client, nil), limits(ginlimit.ErrUnavailable)}, "", ""},
		"a decision":                          {options{hour, key(client, nil)}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log, logger := jsonLog()
				limiter := testkit.Must(ginlimit.NewLocal(logger))
				defer limiter.Close()
				router := gin.New()
				require.NoError(t, router.SetTrustedProxies(nil))
				router.GET("/users/:user",
					limiter.Handler("search", row.options...))
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
		})
	}
}

// loggedLocal returns a limiter without Redis, and its log.
func loggedLocal(t *testing.T) (*testkit.Limiter, *testkit.Buffer) {
	t.Helper()
	log := &testkit.Buffer{}
	return testkit.NewLocal(t, ginlimit.WithLogger(slog.New(slog.NewTextHandler(log, nil)))), log
}
