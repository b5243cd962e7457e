//go:build integration

package admin_test

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// looksAround looks at all pages without a Redis, or with one that can be read: they say what is wrong, and show nothing
// unknown as none.
func (s *site) looksAround(addr, says string, isRead bool) {
	t := s.t
	for _, path := range paths {
		got := s.ask("GET", path, nil)
		page := got.text
		if !isRead {
			require.Regexp(t, `\b`+says+`\b`, page, path)
			require.NotContains(t, page, "Redis does not serve this: client.", path)
			require.NotRegexp(t, `\b0 (found|in force)|<small>0<|<dd>0</dd></div> </dl>|>None|Nobody`, page, path)
		}
		if ofRedis := path != "health" && path != "client"; ofRedis && !isRead {
			require.Equal(t, http.StatusServiceUnavailable, got.code, path)
		} else {
			require.Equal(t, http.StatusOK, got.code, path)
		}
		if path == "client" {
			require.Contains(t, page, `<input name="policy"`, "also if nobody knows which there are")
		}
		require.NotContains(t, page, addr, path)
		require.NotContains(t, page, "dial tcp", path)
	}
	if got := s.ask("GET", "export", nil); !isRead {
		require.Equal(t, http.StatusServiceUnavailable, got.code)
		require.Empty(t, got.header.Get("Content-Disposition"))
	}
}

// TestRedisIsAway: each page says so, and is there. No change is said to be done.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	block := []string{"policy", "api", "client", "a", "do", "block", "for", "1h"}
	for name, fault := range map[string]struct {
		begin  func(*testing.T, string, *redis.Client, func(syscall.Signal))
		says   string
		writes bool // it refuses these alone
	}{
		"frozen": {func(_ *testing.T, _ string, _ *redis.Client, signal func(syscall.Signal)) { signal(syscall.SIGSTOP) },
			"late", false},
		"gone": {func(_ *testing.T, _ string, _ *redis.Client, signal func(syscall.Signal)) { signal(syscall.SIGKILL) },
			"(connection.refused|connection.reset|network|late)", false},
		"a replica": {func(t *testing.T, _ string, rdb *redis.Client, _ func(syscall.Signal)) {
			require.NoError(t, rdb.ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
			require.NoError(t, rdb.ConfigSet(t.Context(), "replica-serve-stale-data", "yes").Err())
		}, "READONLY", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, process := testkit.StartRedisProcess(t)
			rdb := testkit.Connect(t, addr)
			s := newSite(t, rdb)
			s.policy("api", ginlimit.PerHour(10), byX)
			s.page = admin.Patient(s.pageOf(testkit.Connect(t, addr)), 2*time.Second)
			t.Cleanup(func() { _ = process.Signal(syscall.SIGCONT) })
			fault.begin(t, addr, testkit.Connect(t, addr), func(signal syscall.Signal) {
				require.NoError(t, process.Signal(signal))
			})
			s.looksAround(addr, fault.says, fault.writes)
			s.log.lines()
			file := base64.StdEncoding.EncodeToString([]byte("[{policy: api, client: a, limits: 9/h, for: 1h}]"))
			got := s.post("apply", "file", file)
			require.NotContains(t, got.text, "Done")
			require.Equal(t, http.StatusServiceUnavailable, got.code)
			if fault.writes {
				require.Contains(t, got.text, "Wanted: Set overrides in every")
				require.Contains(t, s.log.lines()[0], `change=import policy=api note="" result="not confirmed" client=a`)
			}
			for _, change := range [][]string{block, {"policy", "api", "client", "a", "do", "reset"},
				{"policy", "api", "client", "a", "do", "override", "limits", "9/h", "ends", "1h"},
				{"policy", "api", "all", "yes", "do", "override", "limits", "9/h", "ends", "1h"}} {
				got := s.post("change", change...)
				require.Equal(t, http.StatusServiceUnavailable, got.code)
				require.NotContains(t, got.text, "Done")
				require.NotContains(t, got.text, addr)
				if fault.writes {
					require.Contains(t, got.text, "This is not confirmed, and may have been done all the same.")
					require.Contains(t, got.text, "READONLY")
					require.Contains(t, s.log.lines()[0], `level=WARN msg="ginlimit: an operator changes a limit" who=ann`)
				}
			}
		})
	}
}

// TestAChangeWithoutAnAnswer, as Redis freezes just before it, is not said to be done.
func TestAChangeWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	rdb := testkit.Connect(t, addr)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	t.Cleanup(func() { _ = process.Signal(syscall.SIGCONT) })
	of := testkit.Connect(t, addr)
	of.AddHook(testkit.EveryScript(func(send func() error) error {
		if err := process.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		return send()
	}))
	s.page = admin.Patient(s.pageOf(of), 2*time.Second)
	got := s.post("change", "policy", "api", "client", "a", "do", "reset", "note", "why")
	require.Equal(t, http.StatusServiceUnavailable, got.code)
	require.Contains(t, got.text, "This is not confirmed, and may have been done all the same.")
	require.NotContains(t, got.text, "Done")
	require.Contains(t, s.log.lines()[0], `note=why result="not confirmed"`)
}

// TestAChangeThatIsDone is said to be done, also if Redis freezes just after it.
func TestAChangeThatIsDone(t *testing.T) {
	t.Parallel()
	addr, process := testkit.StartRedisProcess(t)
	rdb := testkit.Connect(t, addr)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	t.Cleanup(func() { _ = process.Signal(syscall.SIGCONT) })
	of := testkit.Connect(t, addr)
	of.AddHook(testkit.EveryScript(func(send func() error) error {
		return errors.Join(send(), process.Signal(syscall.SIGSTOP))
	}))
	s.page = admin.Patient(s.pageOf(of), 2*time.Second)
	got := s.post("change", "policy", "api", "client", "a", "do", "block", "for", "1h")
	require.Equal(t, http.StatusOK, got.code, got.text)
	require.Contains(t, got.text, "Done: Deny client a")
	require.NotContains(t, got.text, "Not done")
	require.Contains(t, got.text, "What the client has now cannot be read.")
}

// TestAClosedLimiter and another prefix: the page says so, and stays.
func TestAClosedLimiter(t *testing.T) {
	t.Parallel()
	rdb := testkit.Connect(t, testkit.StartRedis(t))
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	s.page = s.pageOf(rdb, admin.WithPrefix("other"))
	require.Contains(t, s.get(""),
		"The application&#39;s limiter has another prefix: give it to the page by admin.WithPrefix.")
	s.page = s.pageOf(rdb)
	require.NoError(t, s.limiter.Close())
	for _, path := range paths {
		require.Contains(t, s.get(path), "The limiter of this process is closed.", path)
	}
	require.Contains(t, s.get(""), ">10/h<", "other processes may serve it")
}

// BenchmarkPages says what pages cost beside 1,000 policies and 10,000 overrides.
func BenchmarkPages(b *testing.B) {
	rdb := testkit.Connect(b, testkit.StartRedis(b))
	s := newSite(b, rdb)
	for i := range 1000 {
		p := testkit.Must(s.limiter.Policy("policy "+strconv.Itoa(i), ginlimit.PerHour(10), byX))
		testkit.Must(p.Allow(b.Context(), "a"))
	}
	testkit.Must(s.limiter.Policies(b.Context()))
	for i := range 10 {
		var all []ginlimit.Override
		for j := range 1000 {
			all = append(all, ginlimit.Override{Policy: "policy " + strconv.Itoa(j), Client: "client " + strconv.Itoa(i),
				Limits: []ginlimit.Limit{ginlimit.PerHour(20)}, Until: time.Now().Add(time.Hour), Note: "many"})
		}
		require.NoError(b, s.limiter.OverrideAll(b.Context(), all...))
	}
	require.True(b, testkit.BecomesTrue(nil, func() bool { return s.limiter.Stats().Overrides == 10_000 }))
	of := []string{"policy", "policy 7", "client", "client 7"}
	for name, look := range map[string]func(){
		"overview":  func() { s.get("") },
		"policy":    func() { s.get("policy?name=policy+7") },
		"overrides": func() { s.get("overrides?page=50") },
		"client":    func() { s.ok("client", of...) },
		"confirm":   func() { s.ok("confirm", append(of, "do", "block", "for", "1h")...) },
		"change":    func() { s.ok("change", append(of, "do", "reset")...) },
		"override":  func() { s.ok("change", append(of, "do", "override", "limits", "9/h", "ends", "1h")...) },
		"export":    func() { s.get("export?page=2") },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				look()
			}
		})
	}
}
