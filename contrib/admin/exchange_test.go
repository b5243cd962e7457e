package admin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// upload sends a file as a browser does, as somebody of the staff or with another header.
func (s *site) upload(file string, header ...string) answer {
	s.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	_, err := io.WriteString(testkit.Must(form.CreateFormFile("file", "overrides.json")), file)
	require.NoError(s.t, err)
	require.NoError(s.t, form.Close())
	r := httptest.NewRequestWithContext(s.t.Context(), "POST", s.mounted+"import", &body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	if header == nil {
		header = []string{"Staff", "ann"}
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.page.ServeHTTP(w, r)
	return answer{w.Code, w.Result().Header, spaces.ReplaceAllString(w.Body.String(), " ")}
}

var fileField = regexp.MustCompile(`name="file" value="([^"]*)"`)

// asked returns the file that the form which confirms an import sends.
func asked(t *testing.T, page string) string {
	t.Helper()
	m := fileField.FindStringSubmatch(page)
	require.NotNil(t, m, page)
	return html.UnescapeString(m[1])
}

func override(policy, client string, limits ...ginlimit.Limit) ginlimit.Override {
	return ginlimit.Override{Policy: policy, Client: client, Limits: limits,
		Until: time.Now().Add(time.Hour).Truncate(time.Second), Note: "a launch"}
}

// TestMoveToAnotherRedis by the page alone: also clients with hostile names, and such as read as hashes.
func TestMoveToAnotherRedis(t *testing.T) {
	t.Parallel()
	secret := []byte("a secret of 32 bytes for the test")
	for name, opts := range map[string][]ginlimit.LimiterOption{"names": nil, "hashes": {ginlimit.WithKeySecret(secret)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sites []*site
			for range 2 {
				rdb, _ := testkit.NewMiniredis(t)
				s := newSite(t, rdb, opts...)
				s.policy("api", ginlimit.PerHour(10), ginlimit.InFlight(2), byX)
				sites = append(sites, s)
			}
			from, to := sites[0], sites[1]
			all := []ginlimit.Override{override("api", "", ginlimit.PerHour(20)),
				override("api", "#"+strings.Repeat("A", 43), ginlimit.PerHour(30).WithBurst(3), ginlimit.InFlight(4))}
			for _, client := range hostile {
				if client != "\xff\xfe" { // no override is of one that is no UTF-8
					all = append(all, override("api", client, ginlimit.PerHour(40)))
				}
			}
			require.NoError(t, from.limiter.OverrideAll(t.Context(), all...))
			require.Contains(t, from.get("overrides"), `href="export?page=1&amp;name=&amp;policy=" download>Download as JSON</a>`)
			file := from.ask("GET", "export?page=1&policy=", nil)
			require.Equal(t, http.StatusOK, file.code)
			require.Equal(t, "application/json", file.header.Get("Content-Type"))
			require.Equal(t, `attachment; filename="overrides-1.json"`, file.header.Get("Content-Disposition"))
			require.Equal(t, "no-store", file.header.Get("Cache-Control"))
			require.NotContains(t, from.ask("GET", "export?policy=other", nil).text, "api")

			before := to.upload(file.text)
			require.Equal(t, http.StatusOK, before.code, before.text)
			require.Contains(t, before.text, fmt.Sprintf("Set overrides in every process within a second: %d new, "+
				"and 0 in place of others. All others stay.", len(all)))
			require.NotRegexp(t, `<script>|<img|[\x00-\x08\x0b-\x1f\x7f\x{202e}]`, before.text)
			require.Empty(t, testkit.Must(to.limiter.Overrides(t.Context())), "nothing is set before it is confirmed")
			to.log.lines()
			require.Contains(t, to.ok("apply", "file", asked(t, before.text)), "Done: Set overrides")
			lines := to.log.lines()
			require.Len(t, lines, len(all))
			for _, line := range lines {
				require.Contains(t, line, `who=ann change=import policy=api note="a launch" result=done`)
			}
			want, got := testkit.Must(from.limiter.Overrides(t.Context())), testkit.Must(to.limiter.Overrides(t.Context()))
			require.Len(t, got, len(want))
			for i := range want {
				require.True(t, want[i].Until.Equal(got[i].Until))
				want[i].Until, got[i].Until = time.Time{}, time.Time{}
			}
			require.Equal(t, want, got)
			again := to.upload(to.ask("GET", "export", nil).text).text
			require.Contains(t, again, "Nothing changes: all of its "+strconv.Itoa(len(all))+" overrides are in force.")
			require.NotContains(t, again, "Do it")
		})
	}
}

// TestImportSaysWhatItReplaces, and keeps the ends that it has shown.
func TestImportSaysWhatItReplaces(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	require.NoError(t, s.limiter.Override(t.Context(), override("api", "bob", ginlimit.PerHour(20))))
	page := s.upload("- {policy: api, client: bob, limits: 30/h, for: 2h}\n" +
		"- {policy: api, all: true, limits: [9/h burst 3, 2 in flight], for: 2h, note: '<b>'}\n").text
	require.Contains(t, page, "1 new, and 1 in place of others. All others stay.")
	require.Regexp(t, `data-label="In place of">20/h until [-0-9]+ [0-9:]+ UTC \(<bdi>a launch</bdi>\)`, page)
	require.NotContains(t, page, "<b>'")
	file := asked(t, page)
	require.Equal(t, http.StatusMethodNotAllowed, s.ask("GET", "apply?file="+file, nil, "Staff", "ann").code)
	s.ok("apply", "file", file)
	ends := testkit.Must(s.limiter.Overrides(t.Context()))
	require.Len(t, ends, 2)
	require.Contains(t, s.ok("apply", "file", file), "Nothing changes", "the same ends, not later ones")
	require.Equal(t, ends, testkit.Must(s.limiter.Overrides(t.Context())))
}

// TestBadFilesChangeNothing: every bad override is named.
func TestBadFilesChangeNothing(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	const good = "{policy: api, client: a, limits: 9/h, for: 1h}"
	for file, faults := range map[string][]string{
		"":                             {"The file is empty."},
		"policy: api":                  {"Line 1: want a list of overrides"},
		"[" + good:                     {"Line 1"},
		"- " + good + "\n- 7":          {"Override 2, line 2: want an override"},
		"[" + good + ",{policy: api}]": {"Override 2, line 1: limits is missing", "Override 2, line 1: want one of until"},
		"[" + good + "," + good + "]":  {"Override 2, line 1: policy &#34;api&#34; has client &#34;a&#34; twice."},
		"[{policy: api, all: true, limits: 1/h, until: '2020-01-01T00:00:00Z'}]": {"is in the past"},
		strings.Repeat("#", 1<<20+1):         {"The file has more than 1048576 bytes."},
		strings.Repeat("- "+good+"\n", 1001): {"1001 overrides; want at most 1000."},
		"[{policy: api, client: '#" + strings.Repeat("A", 43) + "', limits: 1/h, for: 1h}]": {": say which it is."},
	} {
		got := s.upload(file)
		require.Equal(t, http.StatusBadRequest, got.code, "%.60s: %s", file, got.text)
		for _, fault := range faults {
			require.Contains(t, got.text, fault, "%.60s", file)
		}
		require.NotContains(t, got.text, "Do it")
		require.NotContains(t, got.text, "<script>.")
	}
	far := s.upload("[" + good + ", {policy: api, client: b, limits: 9/h, for: 900d}]")
	require.Equal(t, http.StatusBadRequest, far.code)
	require.Contains(t, far.text, "Override 2, line 1: an override until")
	for _, got := range []answer{s.post("import"), s.post("apply", "file", "!")} {
		require.Equal(t, http.StatusBadRequest, got.code)
	}
	require.Contains(t, s.upload(strings.Repeat("#", 3<<20)).text, "The form cannot be read, or is too long.")
	require.Empty(t, testkit.Must(s.limiter.Overrides(t.Context())))
}

// TestImportOfWhatIsServed leaves the rest out, and names it.
func TestImportOfWhatIsServed(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	const served, later = "{policy: api, client: a, limits: 9/h, for: 1h}",
		"{policy: <script>, client: a, limits: 9/h, for: 1h}, {policy: <script>, all: true, limits: 9/h, for: 1h}"
	const left = "Left out 2 overrides of policies that no process serves yet: &lt;script&gt;. Upload the file again"
	page := s.upload("[" + served + ", " + later + "]")
	require.Equal(t, http.StatusOK, page.code, page.text)
	require.Contains(t, page.text, "1 new, and 0 in place of others")
	require.Contains(t, page.text, left)
	require.Contains(t, s.ok("apply", "file", asked(t, page.text)), "Done: Set overrides")
	require.Len(t, testkit.Must(s.limiter.Overrides(t.Context())), 1)
	page = s.upload("[" + later + "]")
	require.Equal(t, http.StatusOK, page.code, page.text)
	require.Contains(t, page.text, "Nothing changes yet.")
	require.Contains(t, page.text, left)
	require.NotContains(t, page.text, "Do it")
}

// TestWhoMayImport: whoever may change something. Everybody may download what is shown.
func TestWhoMayImport(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	const file = "[{policy: api, client: a, limits: 9/h, for: 1h}]"
	sent := asked(t, s.upload(file).text)
	for _, from := range [][]string{{"Staff", ""}, {"Staff", "ann", "Sec-Fetch-Site", "cross-site"},
		{"Staff", "ann", "Origin", "https://evil.test"}} {
		require.Equal(t, http.StatusForbidden, s.upload(file, from...).code)
		form := map[string][]string{"file": {sent}}
		require.Equal(t, http.StatusForbidden, s.ask("POST", "apply", form, from...).code)
	}
	require.Contains(t, s.ask("GET", "overrides", nil, "Staff", "ann").text, `type="file"`)
	s.page = testkit.Must(admin.New(s.limiter, rdb))
	require.Equal(t, http.StatusForbidden, s.upload(file).code)
	require.Equal(t, http.StatusForbidden, s.post("apply", "file", sent).code)
	require.NotContains(t, s.ask("GET", "overrides", nil, "Staff", "ann").text, `type="file"`)
	require.Empty(t, testkit.Must(s.limiter.Overrides(t.Context())))
	require.Equal(t, "[] ", s.get("export"))
}

// TestManyOverridesAreSeveralFiles, each of which an import takes.
func TestManyOverridesAreSeveralFiles(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	s := newSite(t, rdb)
	s.policy("api", ginlimit.PerHour(10), byX)
	for i := range 2 {
		var all []ginlimit.Override
		for j := range 600 {
			all = append(all, override("api", fmt.Sprint("client ", i, " ", j), ginlimit.PerHour(20)))
		}
		require.NoError(t, s.limiter.OverrideAll(t.Context(), all...))
	}
	require.Contains(t, s.get("overrides"), "Download 1001 to 1200</a>")
	seen := map[string]bool{}
	for _, page := range []string{"1", "2"} {
		file := s.get("export?page=" + page)
		var all []struct{ Client string }
		require.NoError(t, json.Unmarshal([]byte(file), &all))
		for _, o := range all {
			seen[o.Client] = true
		}
		require.Contains(t, s.upload(file).text, "Nothing changes")
	}
	require.Len(t, seen, 1200)
}
