package web_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func FuzzParseLimit(f *testing.F) {
	for _, s := range []string{"100/m", "5/15m", "10/s burst 20", "-1/0s", "0/d", "1/1h30m",
		"9/ms burst 9007199254740991", "/", "",
		"10/sec", "5/15minutes", "100/hours", "1/0days", "1/70000days", "1/minmin", "1/1.5hour",
		"1/99999999999999999999sec", "+5/day", "1/007min", "5/15m fixed-window", "5/s sliding-window burst 5",
		"4 in flight", "0 in flight",
		"unlimited", "prohibited"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		limit, err := ginlimit.ParseLimit(s)
		if err != nil {
			if !errors.Is(err, ginlimit.ErrInvalidArgument) || limit != (ginlimit.Limit{}) {
				t.Fatalf("%q: %v, %v", s, limit, err)
			}
			return
		}
		back, err := ginlimit.ParseLimit(limit.String())
		if err != nil || back != limit {
			t.Fatalf("%q is %+v, whose text %q is %+v, %v", s, limit, limit.String(), back, err)
		}
		r, err := testkit.NewLocal(t).Reserve(t.Context(), "k", 1, limit)
		if errors.Is(err, ginlimit.ErrInvalidArgument) { // a window may count what a token bucket does not
			r, err = testkit.NewLocal(t, testkit.WithAlgorithm(ginlimit.FixedWindow)).Reserve(t.Context(), "k", 1, limit)
		}
		if err != nil || r.Result().Allowed != (limit.Rate != 0 || limit.InFlight > 0) {
			t.Fatalf("%q: a limit that parses does not limit: %+v, %v", s, r.Result(), err)
		}
	})
}

// FuzzByHeader wants no two tuples of headers to meet, of whatever lengths.
func FuzzByHeader(f *testing.F) {
	f.Add("a-b", "c", "a", "b-c")
	f.Add("a|b", "c", "a", "b|c")
	f.Add(`a\`, "|b", `a`, `\|b`)
	f.Add("{", "}", "\x00", "\n")
	two, one := ginlimit.ByHeader("X-A", "X-B"), ginlimit.ByHeader("X-A")
	f.Fuzz(func(t *testing.T, a1, b1, a2, b2 string) {
		key := func(by ginlimit.KeyFunc, a, b string) string {
			c, _ := gin.CreateTestContext(httptest.NewRecorder())
			c.Request = httptest.NewRequest(http.MethodGet, "/", nil)
			c.Request.Header["X-A"], c.Request.Header["X-B"] = []string{a}, []string{b}
			key, err := by(c)
			if (err != nil) != (key == "") {
				t.Fatalf("%q, %v", key, err)
			}
			return key
		}
		key1, key2 := key(two, a1, b1), key(two, a2, b2)
		if key1 == "" || key2 == "" {
			return
		}
		if same := a1 == a2 && b1 == b2; (key1 == key2) != same {
			t.Fatalf("%q, %q is %q, and %q, %q is %q", a1, b1, key1, a2, b2, key2)
		}
		if key(one, a1, "") != a1 {
			t.Fatalf("one header is its value, not %q of %q", key(one, a1, ""), a1)
		}
		for _, r := range string(clientkey.Text{}.Append(nil, "", ginlimit.Key("name", key1))) {
			if r < ' ' || r > '~' || r == '{' || r == '}' {
				t.Fatalf("%q in the hash tag", r)
			}
		}
	})
}

func FuzzByClientIP(f *testing.F) {
	for _, s := range []string{"203.0.113.7", "::ffff:203.0.113.7", "2001:db8::1", "fe80::1%eth0", "[::1]:80", "", "::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		if strings.TrimSpace(address) == "" {
			return // Gin goes on to the remote address
		}
		key, err := clientIP(t, address)
		if err != nil {
			if !errors.Is(err, ginlimit.ErrNoKey) || key != "" {
				t.Fatalf("%q: %q, %v", address, key, err)
			}
			return
		}
		if ip := net.ParseIP(key); ip != nil {
			for _, wrapped := range []string{"::ffff:" + key, "64:ff9b::" + key} {
				if inside, err := clientIP(t, wrapped); err != nil || inside != key {
					t.Fatalf("%q: %q, %v", wrapped, inside, err)
				}
			}
			return
		}
		ip, prefix, err := net.ParseCIDR(key)
		if err != nil || !ip.Equal(prefix.IP) {
			t.Fatalf("%q is %q: %v", address, key, err)
		}
		prefix.IP[15], prefix.IP[8] = 0xff, 0xff
		if same, err := clientIP(t, prefix.IP.String()); err != nil || same != key {
			t.Fatalf("%q and %s of one /64: %q, %v", key, prefix.IP, same, err)
		}
	})
}
