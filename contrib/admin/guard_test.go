package admin_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestWhoMayChange: nobody without WithChanges, and who the function does not know.
func TestWhoMayChange(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	api := s.policy("api", ginlimit.PerHour(10), byX)
	form := url.Values{"policy": {"api"}, "client": {"a"}, "do": {"block"}, "for": {"1h"}}
	for _, path := range []string{"confirm", "change"} {
		require.Equal(t, http.StatusForbidden, s.ask("POST", path, form).code)
		for _, from := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.test"}} {
			got := s.ask("POST", path, form, append(from, "Staff", "ann")...)
			require.Equal(t, http.StatusForbidden, got.code)
		}
		require.Equal(t, http.StatusMethodNotAllowed, s.ask("GET", path+"?"+form.Encode(), nil, "Staff", "ann").code)
	}
	require.Equal(t, http.StatusForbidden, s.ask("POST", "client", form, "Sec-Fetch-Site", "cross-site").code)
	s.page = testkit.Must(admin.New(s.limiter, rdb))
	require.Equal(t, http.StatusForbidden, s.ask("POST", "change", form, "Staff", "ann").code)
	require.NotContains(t, s.ok("client", "policy", "api", "client", "a"), "What would it do?")
	require.True(t, testkit.Must(api.Peek(t.Context(), "a")).Allowed)
}

// TestEveryAnswerIsGuarded by what browsers enforce, and no proxy keeps it.
func TestEveryAnswerIsGuarded(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	for _, got := range []answer{s.ask("GET", "", nil), s.ask("GET", "policy?name=api", nil), s.ask("GET", "none", nil),
		s.post("client", "policy", "api", "client", "a"), s.post("confirm")} {
		policy := got.header.Get("Content-Security-Policy")
		require.Contains(t, policy, "default-src 'none'")
		require.NotContains(t, policy, "unsafe")
		require.Equal(t, "no-store", got.header.Get("Cache-Control"))
		require.Equal(t, "nosniff", got.header.Get("X-Content-Type-Options"))
		require.NotRegexp(t, `(?i)<style|<script>| style=| on[a-z]+=`, got.text)
		require.NotRegexp(t, `(?:src|href)="(?:https?:)?//`, got.text)
	}
}

// TestBadInput is a 400 that says what is wrong.
func TestBadInput(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	s.policy("plan", byX, ginlimit.WithLimitFunc(func(context.Context, string) ([]ginlimit.Limit, error) {
		return []ginlimit.Limit{ginlimit.PerHour(7)}, nil
	}))
	of := []string{"policy", "api", "client", "a"}
	for text, got := range map[string]answer{
		"No process serves a policy":            s.ask("GET", "policy?name=nobody", nil),
		"there are api, plan":                   s.post("client", "policy", "nobody", "client", "a"),
		"The client is empty":                   s.post("client", "policy", "api"),
		"The client of the form cannot be read": s.post("client", "policy", "api", "code", "!"),
		"fill in its limits":                    s.post("client", "policy", "plan", "client", "a"),
		"is no hash as top shows it":            s.post("client", append(of, "hash", "yes")...),
		"say which it is":                       s.post("client", "policy", "api", "client", "#"+strings.Repeat("A", 43)),
		"is no duration above 0":                s.post("confirm", append(of, "do", "block", "for", "soon")...),
		"or a time such as 2026-12-31T18:00:00Z": s.post("confirm",
			append(of, "do", "override", "limits", "9/h", "ends", "18:00")...),
		"There is no such change": s.post("confirm", append(of, "do", "drop")...),
		"There are no limits":     s.post("confirm", append(of, "do", "override", "ends", "2h")...),
		"is in the past": s.post("confirm",
			append(of, "do", "override", "limits", "1/h", "ends", "2020-01-01T00:00:00Z")...),
		"The note is one line": s.post("confirm", append(of, "do", "reset", "note", "a\nb")...),
		"at most 366 days ahead": s.post("change",
			append(of, "do", "override", "limits", "1/h", "ends", "900d")...),
		"without its other limits": s.post("change",
			append(of, "do", "override", "limits", "2 in flight", "ends", "2h")...),
		"The form cannot be read, or is too long.": s.post("client", append(of, "note", strings.Repeat("a", 1<<17))...),
	} {
		require.Equal(t, http.StatusBadRequest, got.code, "%s: %s", text, got.text)
		require.Contains(t, got.text, text)
	}
	require.Contains(t, s.ok("client", "policy", "plan", "client", "a", "own", "7/h"), "7 of 7 left")
	require.Contains(t, s.ok("confirm", "policy", "plan", "client", "a", "do", "override", "limits", "9/h", "ends", "1h"),
		"It keeps the slots that the application gives it.")
	require.Empty(t, testkit.Must(s.limiter.Overrides(t.Context())))
}

// hostile are names that clients may choose.
var hostile = []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'`, `a&b`, "a\u202eb", "a\nb",
	"\x01", "\xff\xfe", "{{.}}", "javascript:alert(1)", " a ", strings.Repeat("x", 300), "#", "a|b{c}"}

// TestHostileClients are text, and no other client than they are.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	api := s.policy("api", ginlimit.PerHour(1), byX)
	button := regexp.MustCompile(`name="code" value="([\w-]*)"`)
	for _, name := range hostile {
		testkit.Must(api.Allow(t.Context(), name))
		of := []string{"policy", "api", "code", code(name), "hash", "no"}
		page := s.ok("client", of...)
		require.Contains(t, page, ">Denied</b>", "%q", name)
		require.Equal(t, code(name), button.FindStringSubmatch(page)[1], "%q", name)
		page += s.ok("confirm", append(of, "do", "reset", "note", `<b>"`)...)
		page += s.ok("change", append(of, "do", "reset", "note", `<b>"`)...)
		require.True(t, testkit.Must(api.Peek(t.Context(), name)).Allowed, "%q", name)
		require.NotRegexp(t, `<script>|<img|<b>"|[\x00-\x08\x0b-\x1f\x7f\x{202e}]`, page, "%q", name)
	}
	for range 2 {
		for _, name := range hostile {
			testkit.Must(api.Allow(t.Context(), name))
		}
	}
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		return strings.Contains(s.get("policy?name=api"), "&lt;script&gt;alert(1)&lt;/script&gt;")
	}))
	page := s.get("policy?name=api")
	require.NotRegexp(t, `<script>|<img|[\x00-\x08\x0b-\x1f\x7f\x{202e}]`, page)
	for _, m := range button.FindAllStringSubmatch(page, -1) { // who stands there can be looked up
		name := string(testkit.Must(base64.RawURLEncoding.DecodeString(m[1])))
		hash := "no"
		if strings.HasPrefix(name, "#") && len(name) == 44 {
			hash = "yes"
		}
		require.Contains(t, s.ok("client", "policy", "api", "code", m[1], "hash", hash), ">Denied</b>", "%q", name)
	}
}

// TestSecretClients are HMACs, unless the page has the secret.
func TestSecretClients(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	secret := []byte("a secret of 32 bytes for the test")
	s := newSite(t, rdb, ginlimit.WithKeySecret(secret))
	api := s.policy("api", ginlimit.PerHour(1), byX)
	testkit.Must(api.Allow(t.Context(), "alice"))
	got := s.post("client", "policy", "api", "client", "alice")
	require.Equal(t, http.StatusBadRequest, got.code)
	require.Contains(t, got.text,
		"has a WithKeySecret: the page needs it by admin.WithKeySecret, or the client&#39;s hash")
	s.page = s.pageOf(rdb, admin.WithKeySecret(secret))
	require.Contains(t, s.ok("client", "policy", "api", "client", "alice"), ">Denied</b>")
	s.log.lines()
	page := s.ok("change", "policy", "api", "client", "alice", "do", "override", "limits", "9/h", "ends", "1h")
	require.Contains(t, page, "0 of 9 left")
	require.NotContains(t, strings.Join(s.log.lines(), ""), "alice")
	stored := testkit.Must(s.limiter.Overrides(t.Context()))[0].Client
	require.Len(t, stored, 44)
	require.Contains(t, s.get("overrides"), "HMAC or hash")
	page = s.ok("client", "policy", "api", "code", code(stored), "hash", "yes")
	require.Contains(t, page, "This is an HMAC or a hash")
	require.Contains(t, page, "0 of 9 left")
	s.ok("change", "policy", "api", "code", code(stored), "hash", "yes", "do", "end")
	require.Empty(t, testkit.Must(s.limiter.Overrides(t.Context())))
}

// TestNewSaysAllThatIsWrong, without a Redis.
func TestNewSaysAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := admin.New(nil, (*redis.Client)(nil), nil, admin.WithChanges(nil), admin.WithPrefix("{"),
		admin.WithKeySecret(nil), admin.WithLogger(nil))
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
	for _, text := range []string{"the Redis client is nil", "not made by NewLimiter", "option 1 is nil", "WithChanges",
		`WithPrefix("{")`, "WithKeySecret: 0 bytes", "WithLogger"} {
		require.ErrorContains(t, err, text)
	}
	_, err = admin.New(&ginlimit.Limiter{}, redis.NewClient(&redis.Options{}))
	require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
}
