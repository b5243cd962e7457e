package ginlimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// clientIP returns what ByClientIP makes of an address that Gin takes from a platform's header, raw.
func clientIP(t testing.TB, address string) (string, error) {
	t.Helper()
	c, engine := gin.CreateTestContext(httptest.NewRecorder())
	engine.TrustedPlatform = "Cf-Connecting-Ip"
	c.Request = httptest.NewRequest(http.MethodGet, "/", nil)
	c.Request.RemoteAddr = "unreadable"
	c.Request.Header["Cf-Connecting-Ip"] = []string{address}
	return ginlimit.ByClientIP(c)
}

func TestByClientIP(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, address, want string }{
		{"IPv4", "203.0.113.7", "203.0.113.7"},
		{"IPv4-mapped is the IPv4 address", "::ffff:203.0.113.7", "203.0.113.7"},
		{"IPv4-mapped in hex", "::ffff:cb00:7107", "203.0.113.7"},
		{"IPv6 is its /64", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		{"IPv6 in capitals", "2001:DB8:1:2::", "2001:db8:1:2::/64"},
		{"a zone is no part of it", "fe80::1%eth0", "fe80::/64"},
		{"loopback", "::1", "::/64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := clientIP(t, c.address)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
	for _, address := range []string{"", " ", "@", "203.0.113.7:80", "203.0.113.7, 198.51.100.1", "203.0.113", "1.2.3.4.5",
		"01.2.3.4", "::g", "localhost", "203.0.113.7\n", "{203.0.113.7}", "[::1]", "::ffff:1.2.3.4%x\x00{}\x00"} {
		t.Run("not "+address, func(t *testing.T) {
			t.Parallel()
			got, err := clientIP(t, address)
			if err == nil { // a zone may be any text; it is cut off
				assert.Equal(t, "1.2.3.4", got)
				return
			}
			assert.ErrorIs(t, err, ginlimit.ErrNoKey)
			assert.Empty(t, got)
		})
	}
}

func TestKeyTellsTuplesApart(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "login|203.0.113.7", ginlimit.Key("login", "203.0.113.7"))
	tuples := [][]string{{"a-b", "c"}, {"a", "b-c"}, {"a", "b", "c"}, {"a", "b|c"}, {"a|b", "c"}, {"a|b|c"}, {"abc"},
		{"a", ""}, {"", "a"}, {"a"}, {"a", "", ""}, {`a\`, "b"}, {`a\|b`}, {`a`, `\b`}, {`a\\`, "b"}, {"|"}, {`\`}, {""}, {"", ""}}
	seen := map[string][]string{}
	for _, tuple := range tuples {
		key := ginlimit.Key(tuple[0], tuple[1:]...)
		assert.NotContains(t, seen, key, "%q and %q", tuple, seen[key])
		seen[key] = tuple
	}
}
