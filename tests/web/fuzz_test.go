package web_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

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

// replyLimits are what the calls of FuzzReply are about: all of them, or the first ones.
var replyLimits = []ginlimit.Limit{ginlimit.PerMinute(10), ginlimit.PerHour(10), ginlimit.PerDay(10)}

// FuzzReply sends any bytes as the reply to a decision to a real client.
func FuzzReply(f *testing.F) {
	for _, s := range []string{":5\r\n", ":60000\r\n", ":-1\r\n", ":9007199254740991\r\n",
		":9223372036854775807\r\n", "$1\r\n5\r\n", "_\r\n",
		",5.0\r\n", "(99999999999999999999\r\n", "-NOSCRIPT x\r\n", "-OOM x\r\n", "*1\r\n:1\r\n",
		"*2\r\n:1\r\n:2\r\n", "*2\r\n:-36000000\r\n:-36000000\r\n",
		"*2\r\n:9223372036854775807\r\n:9223372036854775807\r\n", "*2\r\n:1\r\n$1\r\n2\r\n",
		"*3\r\n:0\r\n:0\r\n:864000000\r\n", "*5\r\n:10\r\n:1\r\n:2\r\n:3\r\n:4\r\n", "*-1\r\n", "%1\r\n+a\r\n:1\r\n", ":5"} {
		for shape := range uint8(9) {
			f.Add([]byte(s), shape)
		}
	}
	f.Fuzz(func(t *testing.T, reply []byte, shape uint8) {
		algorithm := ginlimit.Algorithm(shape / 3 % 3)
		limits := counted(algorithm, replyLimits[:1+shape%3])
		r, err := allowByReply(t, string(reply), limits)
		switch {
		case err != nil:
			if !errors.Is(err, ginlimit.ErrUnavailable) || r != (ginlimit.Result{}) {
				t.Fatalf("%q: %+v, %v", reply, r, err)
			}
		case !slices.Contains(limits, r.Limit), r.Allowed != (r.Granted == 1), r.Remaining < 0, r.Remaining > 9,
			r.ResetAfter < 0, r.RetryAfter < 0, r.Source != ginlimit.FromRedis:
			t.Fatalf("%q: %+v", reply, r)
		// how long a window takes, its script says
		case algorithm == ginlimit.TokenBucket && r.Allowed != (r.RetryAfter == 0):
			t.Fatalf("%q: %+v", reply, r)
		}
	})
}

// TestReplyBecomesResult: FuzzReply passes if every reply is refused; these are not.
func TestReplyBecomesResult(t *testing.T) {
	t.Parallel()
	minute, hour, day := replyLimits[0], replyLimits[1], replyLimits[2] // a token weighs 6000, 360,000 and 8,640,000 units
	ms := time.Millisecond
	for _, row := range []struct {
		reply     string
		algorithm ginlimit.Algorithm
		limits    int
		want      ginlimit.Result
	}{
		{":5\r\n", ginlimit.TokenBucket, 1,
			ginlimit.Result{Allowed: true, Granted: 1, Limit: minute, Remaining: 8, ResetAfter: 6005 * ms}},
		{":0\r\n", ginlimit.TokenBucket, 1,
			ginlimit.Result{Allowed: true, Granted: 1, Limit: minute, Remaining: 9, ResetAfter: 6000 * ms}},
		{":60000\r\n", ginlimit.TokenBucket, 1,
			ginlimit.Result{Limit: minute, RetryAfter: 6000 * ms, ResetAfter: 60_000 * ms}},
		{"*2\r\n:1\r\n:2\r\n", ginlimit.TokenBucket, 2,
			ginlimit.Result{Allowed: true, Granted: 1, Limit: hour, Remaining: 8, ResetAfter: 360_002 * ms}},
		{"*2\r\n:54001\r\n:2\r\n", ginlimit.TokenBucket, 2,
			ginlimit.Result{Limit: minute, RetryAfter: 1 * ms, ResetAfter: 54_001 * ms}},
		{"*3\r\n:0\r\n:0\r\n:86400000\r\n", ginlimit.TokenBucket, 3,
			ginlimit.Result{Limit: day, RetryAfter: 8_640_000 * ms, ResetAfter: 86_400_000 * ms}},
		{"*5\r\n:3\r\n:0\r\n:0\r\n:7000\r\n:1\r\n", ginlimit.FixedWindow, 1,
			ginlimit.Result{Allowed: true, Granted: 1, Limit: minute, Remaining: 6, ResetAfter: 7000 * ms}},
		{"*5\r\n:10\r\n:5\r\n:6\r\n:7\r\n:1\r\n", ginlimit.SlidingWindow, 1,
			ginlimit.Result{Limit: minute, RetryAfter: 6 * ms, ResetAfter: 7 * ms}},
	} {
		row.want.Source, row.want.Name = ginlimit.FromRedis, "test"
		row.want.Limit.Algorithm = row.algorithm
		if !row.want.Allowed {
			row.want.Cause = ginlimit.CauseRate
		}
		r, err := allowByReply(t, row.reply, counted(row.algorithm, replyLimits[:row.limits]))
		assert.NoErrorf(t, err, "%q", row.reply)
		assert.Equalf(t, row.want, r, "%q", row.reply)
	}
}

func TestReplyOfTheWrongShapeIsAnError(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{"*1\r\n:1\r\n", "*3\r\n:1\r\n:2\r\n:3\r\n", "*2\r\n:1\r\n:-1\r\n",
		"*2\r\n:1\r\n:9007199254740992\r\n", "*-1\r\n", ":1\r\n", "*2\r\n:1\r\n"} {
		r, err := allowByReply(t, reply, replyLimits[:2])
		assert.ErrorIsf(t, err, ginlimit.ErrUnavailable, "%q", reply)
		assert.Zerof(t, r, "%q", reply)
	}
}

// counted returns limits that are counted by an algorithm.
func counted(a ginlimit.Algorithm, limits []ginlimit.Limit) (all []ginlimit.Limit) {
	for _, l := range limits {
		all = append(all, l.WithAlgorithm(a))
	}
	return all
}

// allowByReply is a decision on limits by a server that replies so to a script.
func allowByReply(t *testing.T, reply string, limits []ginlimit.Limit) (ginlimit.Result, error) {
	rdb := redis.NewClient(&redis.Options{MaxRetries: -1, Protocol: 2, DisableIdentity: true,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go serveReply(server, reply)
			return client, nil
		}})
	defer rdb.Close()
	return testkit.NewLimiter(t, rdb).Allow(t.Context(), "k", limits...)
}

// serveReply answers every command on a connection, and ends it after the reply: then nobody waits
// for the rest of one that is cut.
func serveReply(conn net.Conn, reply string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		words, err := readCommand(in)
		if err != nil {
			return
		}
		answer, last := "-ERR unknown command\r\n", false
		switch strings.ToUpper(words[0]) {
		case "SCRIPT":
			answer = "$40\r\n" + redis.NewScript(words[2]).Hash() + "\r\n"
		case "EVALSHA":
			answer, last = reply, !strings.HasPrefix(reply, "-NOSCRIPT") || !strings.Contains(reply, "\r\n")
		case "EVAL":
			answer, last = reply, true
		}
		if _, err := io.WriteString(conn, answer); err != nil || last {
			return
		}
	}
}

// readCommand reads the words of a command.
func readCommand(in *bufio.Reader) (words []string, err error) {
	var n int
	if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	for range n {
		var size int
		if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		word := make([]byte, size+2)
		if _, err := io.ReadFull(in, word); err != nil {
			return nil, err
		}
		words = append(words, string(word[:size]))
	}
	return words, nil
}
