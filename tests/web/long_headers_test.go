package web_test

import (
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Clients choose how long their headers are, up to the MaxHeaderBytes of the server, a megabyte by default.

// TestLongHeadersTakeNoMemory, also of requests that are denied, however many policies and keys there are. It runs
// alone, as it counts bytes.
func TestLongHeadersTakeNoMemory(t *testing.T) {
	const requests, each = 50, 64 << 10
	long := func(part string) string { return strings.Repeat(part, 900_000/len(part)) }
	key := ginlimit.ByHeader("X-Key")
	for name, row := range map[string]struct {
		header, value string
		key           ginlimit.KeyFunc
	}{
		"addresses with ports":  {"X-Forwarded-For", long("203.0.113.7:5, ") + "203.0.113.7:5", ginlimit.ByClientIP},
		"a key":                 {"X-Key", long("a"), key},
		"a key of separators":   {"X-Key", long("|"), key},
		"several headers":       {"X-Key", long("|"), ginlimit.ByHeader("X-Key", "X-Key")},
		"the first of several":  {"X-Key", long(`\`), ginlimit.ByAny(key)},
		"all of all of several": {"X-Key", long("|"), ginlimit.ByAll(ginlimit.ByAll(key, ginlimit.ByAll(key)), key)},
	} {
		limiter := testkit.NewLocal(t)
		handler := ginlimit.AllOf(
			testkit.Must(limiter.Policy("a", ginlimit.PerHour(1), ginlimit.WithKey(row.key))),
			testkit.Must(limiter.Policy("b", ginlimit.PerDay(1), ginlimit.WithKey(row.key),
				ginlimit.WithDenyList(netip.MustParsePrefix("203.0.113.0/24")))))
		r := testkit.Serve(handler)
		request := func() int { return testkit.Get(r, "/", testkit.With(row.header, row.value)).Code }
		require.Equal(t, http.StatusOK, request(), name)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range requests {
			require.Equal(t, http.StatusTooManyRequests, request(), name)
		}
		runtime.ReadMemStats(&after)
		require.Less(t, (after.TotalAlloc-before.TotalAlloc)/requests, uint64(each), name)
	}
}
