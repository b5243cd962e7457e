package httpfields_test

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

func TestFields(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		set  func(f *httpfields.Fields, h http.Header)
		want http.Header
	}{
		"a limit": {func(f *httpfields.Fields, h http.Header) { f.SetXRateLimit(h, "10", 9, 60) },
			http.Header{"X-Ratelimit-Limit": {"10"}, "X-Ratelimit-Remaining": {"9"}, "X-Ratelimit-Reset": {"60"}}},
		"a denial": {func(f *httpfields.Fields, h http.Header) { f.SetDenied(h, 60) },
			http.Header{"Retry-After": {"60"}, "Cache-Control": {"no-store"}}},
		"a denial for a second": {func(f *httpfields.Fields, h http.Header) { f.SetDenied(h, 1) },
			http.Header{"Retry-After": {"1"}, "Cache-Control": {"no-store"}}},
		"a denial after which no wait helps": {func(f *httpfields.Fields, h http.Header) { f.SetDenied(h, 0) },
			http.Header{"Cache-Control": {"no-store"}}},
		"degraded": {func(f *httpfields.Fields, h http.Header) {
			f.Text(h, httpfields.XRateLimitStatus, httpfields.Degraded)
		},
			http.Header{"X-Ratelimit-Status": {"degraded"}}},
		"the later value": {func(f *httpfields.Fields, h http.Header) { f.Number(h, "A", 1, false); f.Number(h, "A", 2, false) },
			http.Header{"A": {"2"}}},
	} {
		h := http.Header{}
		row.set(new(httpfields.Fields), h)
		assert.Equal(t, row.want, h, name)
		for field := range h {
			assert.Equal(t, http.CanonicalHeaderKey(field), field)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	all := []int64{0, 1, 4095, 4096, 4096 + 256, -1, math.MaxInt64, math.MinInt64}
	for n := range int64(2000) { // each place of the cache
		all = append(all, 5000+n)
	}
	for _, n := range append(all, all...) {
		h, f := http.Header{}, new(httpfields.Fields)
		f.SetXRateLimit(h, strconv.FormatInt(n, 10), n, n)
		f.Number(h, "A", n, false)
		f.Number(h, "B", n^1, false) // the first one's text stays
		f.SetDenied(h, n)
		want := []string{strconv.FormatInt(n, 10)}
		for _, name := range []string{"A", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"} {
			assert.Equal(t, want, h[name], name)
		}
		assert.Equal(t, []string{strconv.FormatInt(n^1, 10)}, h["B"])
		if n > 0 {
			assert.Equal(t, want, h["Retry-After"])
		}
	}
}

// TestFieldsShareNoMemory: what is added to one field, or set once all places are used, changes no
// other.
func TestFieldsShareNoMemory(t *testing.T) {
	t.Parallel()
	f, h := new(httpfields.Fields), http.Header{}
	for i := range 10 {
		f.Number(h, "A"+strconv.Itoa(i), int64(i), false)
	}
	for i := range 10 {
		h.Add("A"+strconv.Itoa(i), "more")
	}
	for i := range 10 {
		assert.Equal(t, []string{strconv.Itoa(i), "more"}, h["A"+strconv.Itoa(i)])
	}
}

func TestFieldsOfAResponseAllocateNothing(t *testing.T) { // not parallel: it counts allocations
	h := http.Header{}
	f := new(httpfields.Fields)
	write := func() {
		*f = httpfields.Fields{}
		f.SetXRateLimit(h, "1000000", 999_999, 2_678_400)
		f.SetDenied(h, 2_678_400)
		f.Text(h, httpfields.ContentType, httpfields.TypeProblem)
		f.Number(h, httpfields.ContentLength, 200, false)
	}
	write()
	require.Zero(t, testing.AllocsPerRun(100, write))
}

func TestSecondsAreRoundedUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Second - 1: 1, time.Second: 1, time.Second + 1: 2, time.Minute: 60,
		math.MaxInt64: 0, math.MaxInt64 - 1: 9223372037,
	} {
		assert.Equal(t, want, httpfields.Seconds(d), d)
	}
}

type (
	statuses = []httpfields.Status
	header   = http.Header
)

// limits are limits of a policy: two with a window, one that prohibits, and requests in flight.
func limits() []httpfields.Limit {
	return []httpfields.Limit{
		{Name: "x-m", Quota: 10, Problem: httpfields.QuotaProblem("", "x-m")},
		{Name: "x-h", Quota: 100, Problem: httpfields.QuotaProblem("", "x-h")},
		{Name: "never", Detail: httpfields.ProhibitedDetail,
			Problem: httpfields.QuotaProblem(httpfields.ProhibitedDetail, "never")},
		{Name: "x-c", Quota: 4, Unit: httpfields.ConcurrentRequests, Problem: httpfields.QuotaProblem("", "x-c")},
	}
}

// window returns the window of a limit.
func window(limit int) time.Duration {
	return [...]time.Duration{time.Minute, time.Hour, time.Minute - 1, 0}[limit]
}

func TestDraft(t *testing.T) {
	t.Parallel()
	all := limits()
	for name, row := range map[string]struct {
		list   httpfields.List
		denied bool
		want   http.Header
	}{
		"nothing": {httpfields.List{}, false, http.Header{}},
		"limits without a status": {httpfields.List{Limits: all}, false, header{"Ratelimit-Policy": {
			`"x-m";q=10;w=60, "x-h";q=100;w=3600, "never";q=0;w=60, "x-c";q=4;qu="concurrent-requests"`}}},
		"allowed": {httpfields.List{Limits: all[:2], Statuses: statuses{
			{Limit: 0, Remaining: 9, More: 6}, {Limit: 1, Remaining: 100}}},
			false, header{"Ratelimit-Policy": {`"x-m";q=10;w=60, "x-h";q=100;w=3600`},
				"Ratelimit": {`"x-m";r=9;t=6, "x-h";r=100`}}},
		"in another order": {httpfields.List{Limits: all[:2], Statuses: statuses{{Limit: 1, Remaining: 3}, {Limit: 0}}},
			false, header{"Ratelimit-Policy": {`"x-m";q=10;w=60, "x-h";q=100;w=3600`},
				"Ratelimit": {`"x-h";r=3, "x-m";r=0`}}},
		"only limits that deny have a t": {httpfields.List{Limits: all[:2], Statuses: []httpfields.Status{
			{Limit: 0, More: 6, Denies: true}, {Limit: 1, Remaining: 50, More: 36}}},
			true, header{"Ratelimit-Policy": {`"x-m";q=10;w=60, "x-h";q=100;w=3600`},
				"Ratelimit": {`"x-m";r=0;t=6, "x-h";r=50`}}},
		"a second": {httpfields.List{Limits: all[:1], Statuses: statuses{{More: 1}}},
			false, header{"Ratelimit-Policy": {`"x-m";q=10;w=60`}, "Ratelimit": {`"x-m";r=0;t=1`}}},
		"no time that is not positive": {httpfields.List{Limits: all[:1], Statuses: statuses{{More: -1, Denies: true}}},
			true, header{"Ratelimit-Policy": {`"x-m";q=10;w=60`},
				"Ratelimit": {`"x-m";r=0`}}},
		"integers have fifteen digits": {httpfields.List{
			Limits:   []httpfields.Limit{{Name: "x", Quota: math.MaxInt64}},
			Statuses: statuses{{Remaining: 1e15, More: 1e15 - 1}}},
			false, header{"Ratelimit-Policy": {`"x";q=999999999999999;w=60`},
				"Ratelimit": {`"x";r=999999999999999;t=999999999999999`}}},
	} {
		h := http.Header{}
		httpfields.SetDraft(h, row.list.AppendPolicy(nil, window), row.list.AppendRateLimit(nil, row.denied))
		assert.Equal(t, row.want, h, name)
	}
}

// TestListsOfSeveralPolicies are Items of one List.
func TestListsOfSeveralPolicies(t *testing.T) {
	t.Parallel()
	all := limits()
	first := httpfields.List{Limits: all[:1], Statuses: statuses{{Remaining: 1}}}
	second := httpfields.List{Limits: all[3:], Statuses: statuses{{Remaining: 4}}}
	require.Equal(t, `"x-m";q=10;w=60, "x-c";q=4;qu="concurrent-requests"`,
		string(second.AppendPolicy(first.AppendPolicy(nil, window), window)))
	require.Equal(t, `"x-m";r=1, "x-c";r=4`, string(second.AppendRateLimit(first.AppendRateLimit(nil, false), false)))
}

func TestProblemOfAList(t *testing.T) {
	t.Parallel()
	all := limits()
	denies := func(limits ...int) (all statuses) {
		for _, i := range limits {
			all = append(all, httpfields.Status{Limit: i, Denies: true}, httpfields.Status{Limit: 1 - min(i, 1)})
		}
		return all
	}
	for name, row := range map[string]struct {
		list   httpfields.List
		detail string
		want   []byte
	}{
		"no limit": {httpfields.List{Limits: all}, "", httpfields.QuotaProblem("")},
		"one":      {httpfields.List{Limits: all, Statuses: denies(1)}, "", httpfields.QuotaProblem("", "x-h")},
		"twice":    {httpfields.List{Limits: all, Statuses: denies(1, 1)}, "", httpfields.QuotaProblem("", "x-h")},
		"several": {httpfields.List{Limits: all, Statuses: denies(1, 0, 3)}, "",
			httpfields.QuotaProblem("", "x-h", "x-m", "x-c")},
		"prohibited": {httpfields.List{Limits: all, Statuses: denies(2)}, httpfields.ProhibitedDetail,
			all[2].Problem},
		"another cost": {httpfields.List{Limits: all, Statuses: denies(0)}, "why",
			httpfields.QuotaProblem("why", "x-m")},
	} {
		assert.Equal(t, string(row.want), string(row.list.Problem(row.detail)), name)
	}
}

// TestProblemOfOneLimitAllocatesNothing, nor do Items in memory that is large enough.
func TestProblemOfOneLimitAllocatesNothing(t *testing.T) { // not parallel: it counts allocations
	list := httpfields.List{Limits: limits(),
		Statuses: statuses{{Limit: 1, Denies: true, More: 60}, {Limit: 0}}}
	memory := make([]byte, 0, 256)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if len(list.Problem("")) == 0 || len(list.AppendPolicy(memory, window)) == 0 ||
			len(list.AppendRateLimit(memory, true)) == 0 {
			t.Error("nothing is written")
		}
	}))
}

func TestName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 100)
	for name, want := range map[string]string{
		"search":          "search",
		"Search.v2_x~":    "Search.v2_x~",
		"two words":       "two-words",
		`say "no" \ {a}`:  "say--no-----a-",
		"a/b:c":           "a/b:c",
		"*":               "*",
		"2nd":             "limit-2nd",
		"/login":          "limit-/login",
		"":                "limit-",
		"Größe":           "Gr----e",
		"日":               "limit----",
		"a\r\nSet-Cookie": "a--Set-Cookie",
		"10/s burst 20":   "limit-10/s-burst-20",
		long:              long[:64],
		"2" + long:        "limit-2" + long[:57],
	} {
		assert.Equal(t, want, httpfields.Name(name), "%q", name)
	}
}

func TestNamesOfLimits(t *testing.T) {
	t.Parallel()
	named := func(policy string, several bool, own ...string) (names []string) {
		limits := make([]httpfields.Limit, len(own))
		for i, name := range own {
			limits[i].Name, _ = strings.CutPrefix(name, "unit ")
			if limits[i].Name != name {
				limits[i].Unit = httpfields.ConcurrentRequests
			}
		}
		httpfields.NameLimits(policy, several, limits)
		for _, limit := range limits {
			require.Equal(t, string(httpfields.QuotaProblem("", limit.Name)), string(limit.Problem))
			names = append(names, limit.Name)
		}
		return names
	}
	require.Equal(t, []string{"a"}, named("a", false, "m"))
	require.Equal(t, []string{"limit-2nd-m", "limit-2nd-limit-15m"}, named("2nd", true, "m", "15m"))
	require.Equal(t, []string{"a", "a-c"}, named("a", false, "m", "unit c"))
	require.Equal(t, []string{"a-m", "a-m-2", "a-h", "a-m-3"}, named("a", true, "m", "m", "h", "m"))
	require.Equal(t, []string{"a-m-2", "a-m", "a-m-3"}, named("a", true, "m-2", "m", "m"))
	long := strings.Repeat("n", 64)
	require.Equal(t, []string{long + "-m", long + "-h"}, named(long+"1", true, "m", "h"))
}

// TestRenamedLimits are copies, as responses share limits.
func TestRenamedLimits(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ own, taken, want []string }{
		"nothing is taken":          {[]string{"a", "b"}, nil, []string{"a", "b"}},
		"others are":                {[]string{"a", "b"}, []string{"c", "a-2"}, []string{"a", "b"}},
		"one is":                    {[]string{"a", "b"}, []string{"b"}, []string{"a", "b-2"}},
		"the next number is too":    {[]string{"a"}, []string{"a", "a-2"}, []string{"a-3"}},
		"a later limit has it":      {[]string{"a", "a-2"}, []string{"a"}, []string{"a-3", "a-2"}},
		"an earlier limit has it":   {[]string{"a-2", "a"}, []string{"a"}, []string{"a-2", "a-3"}},
		"that one is taken as well": {[]string{"a-2", "a"}, []string{"a", "a-2"}, []string{"a-2-2", "a-3"}},
		"no limits":                 {nil, []string{"a"}, nil},
	} {
		var limits []httpfields.Limit
		for _, own := range row.own {
			limits = append(limits, httpfields.Limit{Name: own, Detail: "why", Problem: httpfields.QuotaProblem("why", own)})
		}
		before := slices.Clone(limits)
		var got []string
		for _, limit := range httpfields.Rename(limits, row.taken) {
			got = append(got, limit.Name)
			assert.Equal(t, string(httpfields.QuotaProblem("why", limit.Name)), string(limit.Problem), name)
		}
		assert.Equal(t, row.want, got, name)
		assert.Equal(t, before, limits, name)
	}
}

func TestIsToken(t *testing.T) {
	t.Parallel()
	for c := range 256 {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		want := letter || c < 0x80 && strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) // RFC 9110, section 5.6.2
		assert.Equal(t, want, httpfields.IsToken(string([]byte{byte(c)})), "%q", byte(c))
		assert.Equal(t, want, httpfields.IsToken(string([]byte{'X', byte(c)})), "%q", byte(c))
	}
	require.False(t, httpfields.IsToken(""))
}

// FuzzName wants each name to be valid as a String, as a Token, and in JSON without escapes.
func FuzzName(f *testing.F) {
	for _, name := range []string{"search", "", "2nd", `"`, "\\", "日本", "*x", "a b", strings.Repeat("é", 40)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got := httpfields.Name(name)
		item, err := httpsfv.UnmarshalItem([]string{got})
		require.NoError(t, err)
		require.Equal(t, httpsfv.Token(got), item.Value)
		item, err = httpsfv.UnmarshalItem([]string{`"` + got + `"`})
		require.NoError(t, err)
		require.Equal(t, got, item.Value)
		text, err := json.Marshal(got)
		require.NoError(t, err)
		require.Equal(t, strconv.Quote(got), strings.ReplaceAll(string(text), `\u0026`, "&"))
		require.Equal(t, got, httpfields.Name(got))
	})
}

func TestProblems(t *testing.T) {
	t.Parallel()
	const (
		quota = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
			`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,`
		costs = "This request costs 12 and the limit never allows more than 10 at once, so retrying will not help."
	)
	for want, got := range map[string]string{
		quota + `"violated-policies":[]}`:        string(httpfields.QuotaProblem("")),
		quota + `"violated-policies":["a"]}`:     string(httpfields.QuotaProblem("", "a")),
		quota + `"violated-policies":["a","b"]}`: string(httpfields.QuotaProblem("", "a", "b")),
		quota + `"detail":"` + costs + `","violated-policies":["a"]}`: string(
			httpfields.QuotaProblem(httpfields.CostDetail(12, 10), "a")),
		quota + `"detail":"This limit is shared, and your share of it is used up.","violated-policies":["a"]}`: string(
			httpfields.QuotaProblem(httpfields.ShareDetail, "a")),
		`{"type":"about:blank","title":"Forbidden","status":403}`: httpfields.StatusProblem("Forbidden",
			http.StatusForbidden),
		`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
			`"title":"Request cannot be satisfied due to temporary server capacity constraints",` +
			`"status":503}`: httpfields.CapacityProblem,
		`{"type":"about:blank","title":"Bad Request","status":400,` +
			`"detail":"The header X-A is missing."}`: httpfields.HeaderProblem("X-A"),
	} {
		assert.Equal(t, want, got)
		assert.True(t, json.Valid([]byte(got)), got)
	}
}
