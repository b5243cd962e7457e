//go:build integration

package docs_test

import (
	"net"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestHashedTagIsFoundByTheDocumentedCommand runs the command of docs/operations.md that works out a hash tag.
func TestHashedTagIsFoundByTheDocumentedCommand(t *testing.T) {
	t.Parallel()
	bash := testkit.Need(t, "bash")
	testkit.Need(t, "openssl")
	m := regexp.MustCompile("(?s)```sh\n(printf %s '([^']*)' [^\n]*)\n```").FindStringSubmatch(testkit.Read(t,
		"docs/operations.md"))
	require.NotNil(t, m)
	require.Equal(t, ginlimit.Key("h", "a{b}"), m[2], "the client that the document speaks of")
	tag := testkit.Must(exec.CommandContext(t.Context(), bash, "-c", m[1]).Output())
	require.Equal(t, string(clientkey.Text{}.Append(nil, "", m[2])), strings.TrimSpace(string(tag)))
}

// TestUnblockingByHandLeavesOnlySlots runs the command of docs/operations.md that unblocks a client.
func TestUnblockingByHandLeavesOnlySlots(t *testing.T) {
	t.Parallel()
	bash := testkit.Need(t, "bash")
	testkit.Need(t, "redis-cli")
	m := regexp.MustCompile("(?s)```sh\n(redis-cli --scan [^\n]* unlink)\n```").FindStringSubmatch(testkit.Read(t,
		"docs/operations.md"))
	require.NotNil(t, m)
	addr := testkit.StartRedis(t)
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	for _, algorithm := range []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow} {
		t.Run(algorithm.String(), func(t *testing.T) {
			logins := func() *ginlimit.Policy { // of a process of its own
				p := testkit.Must(testkit.NewLimiter(t, testkit.Connect(t, addr)).Policy("login",
					ginlimit.Per(1, 15*time.Minute).WithAlgorithm(algorithm),
					ginlimit.PerCalendar(100, ginlimit.CalendarDay(nil)), ginlimit.InFlight(2),
					ginlimit.WithBan(time.Hour, 24*time.Hour)))
				return p
			}
			first := logins()
			const client, other = "203.0.113.7", "203.0.113.8"
			for _, client := range []string{client, other} {
				slot := testkit.Must(first.Reserve(t.Context(), client, 1))
				defer slot.Release()
				denied := testkit.Must(first.Reserve(t.Context(), client, 1))
				require.Equal(t, time.Hour, denied.Result().RetryAfter.Round(time.Minute), "a ban")
			}

			out, err := exec.CommandContext(t.Context(), bash, "-c",
				strings.ReplaceAll(m[1], "redis-cli ", "redis-cli -p "+port+" ")).CombinedOutput()
			require.NoError(t, err, string(out))
			second := logins()
			allowed := testkit.Must(second.Reserve(t.Context(), client, 1))
			require.True(t, allowed.Result().Allowed)
			allowed.Release()
			held := testkit.Must(testkit.Connect(t, addr).Exists(t.Context(), "ginlimit:{login|"+client+"}:slots").Result())
			require.EqualValues(t, 1, held)
			require.False(t, testkit.Must(second.Reserve(t.Context(), other, 1)).Result().Allowed)
			require.NoError(t, second.Reset(t.Context(), client))
			require.NoError(t, second.Reset(t.Context(), other))
		})
	}
}
