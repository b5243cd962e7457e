package admin_test

import (
	"bytes"
	"encoding/base64"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin"
	"github.com/ginlimit/ginlimit/contrib/top"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// site is an application with the page, and somebody who looks at it.
type site struct {
	t       testing.TB
	limiter *ginlimit.Limiter
	page    http.Handler
	log     *journal
	mounted string
}

// journal is what is logged.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// lines returns the lines that were logged since the last call.
func (j *journal) lines() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.text.Reset()
	return strings.Split(strings.TrimSpace(j.text.String()), "\n")
}

// staff may change limits: everybody with the header Staff.
func staff(r *http.Request) (string, bool) {
	name := r.Header.Get("Staff")
	return name, name != ""
}

// newSite returns the page on a Redis. Its limiter serves some policies.
func newSite(t testing.TB, rdb redis.UniversalClient, opts ...ginlimit.LimiterOption) *site {
	t.Helper()
	s := &site{t: t, log: &journal{}, mounted: "/staff/"}
	reporter := testkit.Must(top.New(rdb, top.WithInterval(time.Second), top.WithOutcomes(), top.WithUsage()))
	s.limiter = testkit.Must(ginlimit.NewLimiter(rdb, append([]ginlimit.LimiterOption{
		ginlimit.WithTimeout(testkit.Patience), ginlimit.WithLogger(slog.New(slog.DiscardHandler)),
		ginlimit.WithDenyCache(0), ginlimit.WithClientObserver(reporter.Observe)}, opts...)...))
	t.Cleanup(func() { require.NoError(t, s.limiter.Close()) })
	t.Cleanup(func() { _ = reporter.Close() })
	s.page = s.pageOf(rdb)
	return s
}

// pageOf returns the page, which waits for a busy machine.
func (s *site) pageOf(rdb redis.UniversalClient, opts ...admin.Option) http.Handler {
	page := testkit.Must(admin.New(s.limiter, rdb, append([]admin.Option{admin.WithChanges(staff),
		admin.WithLogger(slog.New(slog.NewTextHandler(s.log, nil)))}, opts...)...))
	return admin.Patient(page, testkit.Patience)
}

// policy returns a policy that is published.
func (s *site) policy(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
	s.t.Helper()
	p := testkit.Must(s.limiter.Policy(name, opts...))
	testkit.Must(p.Reserve(s.t.Context(), "someone", 1)).Release()
	testkit.Must(s.limiter.Policies(s.t.Context())) // which publishes it
	return p
}

// answer is what the page said.
type answer struct {
	code   int
	header http.Header
	text   string
}

var spaces = regexp.MustCompile(`\s+`)

func (s *site) ask(method, path string, form url.Values, header ...string) answer {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, s.mounted+path, strings.NewReader(form.Encode()))
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.page.ServeHTTP(w, r)
	text, err := io.ReadAll(w.Body)
	require.NoError(s.t, err)
	return answer{w.Code, w.Result().Header, spaces.ReplaceAllString(string(text), " ")}
}

func (s *site) get(path string) string {
	s.t.Helper()
	got := s.ask("GET", path, nil)
	require.Equal(s.t, http.StatusOK, got.code, got.text)
	return got.text
}

// post sends a form, of pairs of name and value, as somebody of the staff.
func (s *site) post(path string, fields ...string) answer {
	s.t.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	return s.ask("POST", path, form, "Staff", "ann")
}

// ok is post of what succeeds.
func (s *site) ok(path string, fields ...string) string {
	s.t.Helper()
	got := s.post(path, fields...)
	require.Equal(s.t, http.StatusOK, got.code, got.text)
	return got.text
}

var field = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)

// confirmed sends a form, and then the form that the page shows to confirm it.
func (s *site) confirmed(fields ...string) (sentence, after string) {
	s.t.Helper()
	page := s.ok("confirm", fields...)
	_, form, _ := strings.Cut(page, `<form method="post" action="change">`)
	form, _, _ = strings.Cut(form, "</form>")
	var again []string
	for _, m := range field.FindAllStringSubmatch(form, -1) {
		again = append(again, m[1], html.UnescapeString(m[2]))
	}
	return page, s.ok("change", again...)
}

func code(client string) string { return base64.RawURLEncoding.EncodeToString([]byte(client)) }

// paths are all pages that somebody looks at.
var paths = []string{"", "policies", "policy?name=api", "overrides", "health", "client"}

var byX = ginlimit.WithKey(ginlimit.ByHeader("X"))

func TestOverview(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	require.Contains(t, s.get(""),
		"No process has served a policy under the prefix &#34;ginlimit&#34; in the last minutes.")
	require.NotContains(t, s.get(""), "published last")
	api := s.policy("api", ginlimit.PerMinute(3), byX)
	s.policy("search", ginlimit.PerHour(100), ginlimit.InFlight(2), byX)
	require.Regexp(t, `None. Policies were published last .* ago. If Redis has lost its data, blocks and bans are gone, too`,
		s.get(""))
	for range 5 {
		testkit.Must(api.Allow(t.Context(), "alice"))
	}
	require.NoError(t, s.limiter.Override(t.Context(), ginlimit.Override{Policy: "search", Client: "bob",
		Limits: []ginlimit.Limit{ginlimit.PerHour(900)}, Until: time.Now().Add(time.Hour), Note: "a launch"}))
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		return strings.Contains(s.get(""), "4 allowed, 2 denied")
	}), s.get(""))
	page := s.get("")
	for _, text := range []string{"Redis decides.", "3/m", "100/h, 2 in flight", "900/h", "a launch", "33.3 % denied",
		"</code>: 2 policies, each in 1 process,", "Processes that share limits without Redis", `<rect class="denied"`, "read-only"} {
		require.Contains(t, page, text)
	}
	require.NotContains(t, page, "alice", "who is denied stands on the policy's page")
	require.NotContains(t, page, ">End<", "it is read-only")

	page = s.get("policy?name=api")
	require.Regexp(t, `<bdi>alice</bdi></button></form></th><td data-label="Denials">2</td>`, page)
	require.Regexp(t, `Who uses most.*<bdi>alice</bdi></button></form></th><td data-label="Tokens">3</td>`, page)
	require.Contains(t, s.get("policies?name=SEA"), "1 found.")
	require.Contains(t, s.get("overrides?policy=search"), "1 in force of policy <bdi>search</bdi>")
	require.Contains(t, s.get("overrides?policy=SEA"), "0 in force")
	require.Regexp(t, `1 in force,.*href="export\?page=1&amp;name=SEA&amp;policy="`, s.get("overrides?name=SEA"))
	require.Contains(t, s.get("overrides?name=api"), "0 in force")
	require.Contains(t, s.get("export?name=SEA"), `"search"`)
	require.NotContains(t, s.get("export?name=api"), `"search"`)
	require.Contains(t, s.get("health"), "sliding-window: scripts run")
}

// TestARollout: processes serve two variants of a policy.
func TestARollout(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerMinute(60), byX)
	require.NotContains(t, s.get(""), "Several variants")
	other := newSite(t, testkit.Connect(t, rdb.Options().Addr))
	other.policy("api", ginlimit.PerMinute(1), byX)
	page := s.get("")
	require.Contains(t, page, `Several variants</b> of <a href="policy?name=api">`)
	require.Regexp(t, `60/m.*>1/m<|>1/m<.*60/m`, page)
	require.Contains(t, s.get("policy?name=api"), "2 variants:</b> a rollout")
}

// TestSeveralVersions are a rollout if they serve one policy, else several applications.
func TestSeveralVersions(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerMinute(60), byX)
	published := testkit.Must(rdb.HVals(t.Context(), "ginlimit:{policies}").Result())[0]
	other := regexp.MustCompile(`"build":"[^"]*"`).ReplaceAllString(published, `"build":"2"`)
	publish := func(name, text string) {
		require.NoError(t, rdb.HSet(t.Context(), "ginlimit:{policies}", name, text).Err())
		seen := redis.Z{Score: float64(time.Now().UnixMilli()), Member: name + " P1"}
		require.NoError(t, rdb.ZAdd(t.Context(), "ginlimit:{policies}:processes", seen).Err())
	}
	publish("another", strings.Replace(other, `"name":"api"`, `"name":"web"`, 1))
	require.Contains(t, s.get(""), "<code>2</code>: 1 policy")
	require.NotContains(t, s.get(""), "A rollout")
	publish("newer", other)
	require.Contains(t, s.get(""), "A rollout:</b> processes serve 1 policy in several versions.")
}

// TestNoReports are no proof that nobody is denied.
func TestNoReports(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	limiter := testkit.Must(ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(testkit.Patience)))
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	s := &site{t: t, limiter: limiter, log: &journal{}, mounted: "/staff/"}
	s.page = s.pageOf(rdb)
	s.policy("api", ginlimit.PerMinute(60), byX)
	page := s.get("policy?name=api")
	require.Regexp(t, `Last ten minutes</h2>.*No reports: .*Who is denied most</h2> <p>No reports\.</p>`, page)
	require.NotContains(t, page, "Nobody")
}

// TestALimitOf1PerMinuteByMistake: the overview shows which policy suddenly denies nearly all, its limit and version.
func TestALimitOf1PerMinuteByMistake(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	good, bad := s.policy("good", ginlimit.PerMinute(60), byX), s.policy("bad", ginlimit.PerMinute(1), byX)
	for _, client := range []string{"alice", "bob"} {
		for range 10 {
			testkit.Must(good.Allow(t.Context(), client))
			testkit.Must(bad.Allow(t.Context(), client))
		}
	}
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		return strings.Contains(s.get(""), "21 allowed") && strings.Contains(s.get(""), "3 allowed, 18 denied")
	}), s.get(""))
	require.Regexp(t, `<bdi>bad</bdi></a></th> <td data-label="Limits">1/m.*\(85.7 % denied\).*<bdi>good</bdi>`, s.get(""))
	require.Regexp(t, `Who is denied most.*<bdi>(alice|bob)</bdi>.*>9<.*<bdi>(alice|bob)</bdi>.*>9<`,
		s.get("policy?name=bad"))
	_, page := s.confirmed("policy", "bad", "all", "yes", "do", "override", "limits", "60/m", "ends", "2h")
	require.Contains(t, page, "Overridden for all clients:</b> 60/m")
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		return testkit.Must(bad.Allow(t.Context(), "alice")).Limit == ginlimit.PerMinute(60)
	}), "until the mistake is mended")
}

// TestMountedAnywhere: all links are relative to the folder of the page.
func TestMountedAnywhere(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	for _, s.mounted = range []string{"/", "/staff/", "/a/b/"} {
		require.Contains(t, s.get(""), `href="page.css"`)
		require.Contains(t, s.get("page.js"), "setInterval")
		require.Equal(t, http.StatusNotFound, s.ask("GET", "nothing", nil).code)
		require.NotRegexp(t, `(?:href|src|action)="/`, s.get("policies")+s.get("client"))
	}
}

func TestAClient(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	api := s.policy("api", ginlimit.PerHour(10), ginlimit.InFlight(2), byX)
	of := []string{"policy", "api", "client", "alice"}
	for range 3 {
		testkit.Must(api.Reserve(t.Context(), "alice", 2)).Release()
	}
	held := testkit.Must(api.Reserve(t.Context(), "alice", 1))
	defer held.Release()
	page := s.ok("client", of...)
	for _, text := range []string{"<b>10/h</b> 3 of 10 left", "<b>2 in flight</b> 1 of 2 slots free", `width="30"`,
		">Allowed</b>", "</code>: 1</li>"} {
		require.Contains(t, page, text)
	}

	sentence := "Deny client alice under policy api everything for 1h0m0s, until "
	require.Contains(t, s.ok("confirm", append(of, "do", "block", "for", "1h", "note", "a bot")...), sentence)
	require.True(t, testkit.Must(api.Peek(t.Context(), "alice")).Allowed, "nothing is done before it is confirmed")
	_, page = s.confirmed(append(of, "do", "block", "for", "1h", "note", "a bot")...)
	require.Contains(t, page, "Done: "+sentence)
	require.Contains(t, page, ">Denied</b> for 1h0m0s")
	require.False(t, testkit.Must(api.Peek(t.Context(), "alice")).Allowed)
	lines := s.log.lines()
	require.Len(t, lines, 1)
	for _, text := range []string{"level=INFO", "who=ann", "change=block", "policy=api", `note="a bot"`, "result=done",
		"client=alice"} {
		require.Contains(t, lines[0], text)
	}

	_, page = s.confirmed(append(of, "do", "reset")...)
	require.Contains(t, page, "Done: End the block and the ban of client alice under policy api, found blocked until ")
	require.True(t, testkit.Must(api.Peek(t.Context(), "alice")).Allowed)

	override := append(of, "do", "override", "limits", "600/h burst 60", "ends", "2h", "note", "a launch")
	before, page := s.confirmed(override...)
	require.Regexp(t, `Limit client alice under policy api to 600/h burst 60 instead of 10/h, until .* `+
		`It keeps 2 in flight\.`, before)
	require.Contains(t, page, "60 of 60 left", page)
	require.Contains(t, page, "1 of 2 slots free")
	all := testkit.Must(s.limiter.Overrides(t.Context()))
	require.Len(t, all, 1)
	require.Equal(t, "a launch", all[0].Note)
	require.WithinDuration(t, time.Now().Add(2*time.Hour), all[0].Until, time.Minute)

	_, page = s.confirmed(append(of, "do", "override", "limits", "prohibited", "ends", "2h")...)
	require.Contains(t, page, ">Denied</b> for as long as the limit is 0/s")
	require.Contains(t, page, "denied (never)</span>")
	s.confirmed(override...)

	end := []string{"policy", "api", "code", code("alice"), "hash", "no", "do", "end"}
	before, _ = s.confirmed(end...)
	require.Contains(t, before, "End the override of policy api for client alice: 600/h burst 60 until ")
	require.Empty(t, testkit.Must(s.limiter.Overrides(t.Context())))
	got := s.post("change", end...)
	require.Equal(t, http.StatusBadRequest, got.code)
	require.Contains(t, got.text, "has no such override any more")
}

func TestOverrideForAll(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerMinute(1), byX)
	all := []string{"policy", "api", "all", "yes", "do", "override", "limits", "60/m", "ends", "30m"}
	before, page := s.confirmed(all...)
	require.Contains(t, before,
		"Limit all clients of policy api without an override of their own to 60/m instead of 1/m")
	require.Contains(t, page, "Overridden for all clients:</b> 60/m until")
	end := []string{"policy", "api", "all", "yes", "do", "end"}
	_, page = s.confirmed(end...)
	require.Contains(t, page, "Done: End the override of policy api for all clients: 60/m")
	require.Empty(t, testkit.Must(s.limiter.Overrides(t.Context())))
	got := s.post("change", "policy", "api", "all", "yes", "do", "block", "for", "1h")
	require.Equal(t, http.StatusBadRequest, got.code)
}

// TestWhyItIsDegraded, before and after it is known.
func TestWhyItIsDegraded(t *testing.T) {
	t.Parallel()
	for why, transitions := range map[string]map[ginlimit.Transition]uint64{
		"What has opened it is not known yet.": {{To: "half_open"}: 1},
		"It has opened by: late (once).":       {{To: "open", Reason: ginlimit.ReasonLate}: 1},
		"It has opened by: late (3 times), network (once).": {{To: "open", Reason: ginlimit.ReasonLate}: 3,
			{To: "open", Reason: ginlimit.ReasonNetwork}: 1, {To: "closed"}: 4},
	} {
		require.Equal(t, "The circuit breaker of 1 of 2 servers is open. "+why+" WithFailureMode decides.",
			admin.Degraded(ginlimit.Stats{Servers: 2, LostServers: 1, Transitions: transitions}))
	}
}

// TestNobodyLooks: then Redis hears nothing of the page.
func TestNobodyLooks(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		s := newSite(t, b.Redis)
		s.policy("api", ginlimit.PerHour(10), byX)
		for _, path := range paths {
			s.get(path)
		}
		s.ok("client", "policy", "api", "client", "a")
		require.NoError(t, s.limiter.Close())
		time.Sleep(time.Minute) // until what was observed is reported
		before := b.Mini.CommandCount()
		time.Sleep(time.Hour)
		require.Equal(t, before, b.Mini.CommandCount())
	})
}
