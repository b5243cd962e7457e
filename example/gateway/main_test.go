package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

// gateway is the program, on a free port.
type gateway struct {
	t       *testing.T
	address string
	said    string // where it listens, and how to ask it
}

// start runs the program until the test ends, with a Redis at an address or with its own.
func start(t *testing.T, redisAddr string, busy bool) gateway {
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "127.0.0.1:0", redisAddr, "secret", busy, in) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	lines, said := bufio.NewReader(out), ""
	for !strings.Contains(said, "/staff/") {
		said += testkit.Must(lines.ReadString('\n'))
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return gateway{t, regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(said), said}
}

// ask asks for an answer with an API key.
func (g gateway) ask(key, body string) (*http.Response, string) {
	req := testkit.Must(http.NewRequest(http.MethodPost, "http://"+g.address+"/v1/complete", strings.NewReader(body)))
	req.Header.Set("X-API-Key", key)
	response := testkit.Must(http.DefaultClient.Do(req))
	defer response.Body.Close()
	return response, string(testkit.Must(io.ReadAll(response.Body)))
}

// left is how many tokens an answer says are left.
func left(response *http.Response) int {
	return testkit.Must(strconv.Atoi(response.Header.Get("X-RateLimit-Remaining")))
}

const cheap = `{"prompt":"one two","max_tokens":1}` // 2 tokens and 1

// TestGateway uses what a key may use.
func TestGateway(t *testing.T) {
	g := start(t, "", true)
	first, text := g.ask("alice", `{"prompt":"Why is the sky blue?","max_tokens":400}`)
	require.Equal(t, http.StatusOK, first.StatusCode)
	require.Equal(t, 6000-406, left(first), "the estimate")
	usage := regexp.MustCompile(`event:usage\ndata:(\d+)`).FindStringSubmatch(text)
	require.NotNil(t, usage, text)
	used := testkit.Must(strconv.Atoi(usage[1]))
	require.Equal(t, 6+strings.Count(text, "event:token"), used)
	second, _ := g.ask("alice", cheap)
	require.GreaterOrEqual(t, left(second), 6000-used-3, "what was used")
	for _, item := range []string{`"api-key";q=60`, `"tokens-m";q=6000`, `"tokens-month";q=100000`, `"api-key-c";q=2`,
		`"user-c";q=3`, `"account-c";q=4`, `"upstream";q=16000`} {
		require.Contains(t, first.Header.Get("RateLimit-Policy"), item)
	}

	denied, body := g.ask("bob", `{"prompt":"`+strings.Repeat("long ", 5000)+`","max_tokens":1000}`)
	require.Equal(t, http.StatusTooManyRequests, denied.StatusCode)
	require.Empty(t, denied.Header.Get("Retry-After"), "it is never allowed")
	require.Contains(t, body, "retrying will not help")
	require.Contains(t, denied.Header.Get("RateLimit"), `"api-key";r=60`, "it takes no request either")

	for body, want := range map[string]int{`{}`: 400, `{"prompt":"x","max_tokens":-1}`: 400,
		`{"prompt":"  ","max_tokens":1}`: 400, cheap: 200} {
		response, _ := g.ask("alice", body)
		require.Equal(t, want, response.StatusCode, body)
	}
	stranger, _ := g.ask("mallory", cheap)
	require.Equal(t, http.StatusUnauthorized, stranger.StatusCode)
	g.testStaff()
	g.testAccount()
}

// testAccount has the users of an account share what it may use.
func (g gateway) testAccount() {
	t := g.t
	var all sync.WaitGroup
	for range 5 { // two at once, the others wait
		all.Go(func() {
			response, _ := g.ask("alice-ci", `{"prompt":"one two","max_tokens":50}`)
			assert.Equal(t, http.StatusOK, response.StatusCode)
		})
	}
	all.Wait()
	// Alice has what she may hold of the account with both of her keys, and bob still has his share.
	for _, c := range []struct {
		key    string
		tokens int
		status int
	}{{"alice", 5000, 200}, {"alice-ci", 4000, 200}, {"alice-ci", 1500, 429}, {"bob", 5500, 200}} {
		prompt := strings.Repeat("x", 4*c.tokens)
		response, text := g.ask(c.key, `{"prompt":"`+prompt+`","max_tokens":1}`)
		require.Equal(t, c.status, response.StatusCode, c.key)
		if c.status == http.StatusTooManyRequests {
			require.Contains(t, text, "This limit is shared")
			require.NotEmpty(t, response.Header.Get("Retry-After"))
		}
	}
}

// testStaff does what staff may do, to an API key, which asks.
func (g gateway) testStaff() {
	t, staff := g.t, "http://"+g.address+"/staff"
	ask := func() int {
		response, _ := g.ask("alice-ci", cheap)
		return response.StatusCode
	}
	send := func(method, path string, fields ...string) (int, string) {
		form := url.Values{}
		for i := 0; i+1 < len(fields); i += 2 {
			form.Set(fields[i], fields[i+1])
		}
		req := testkit.Must(http.NewRequest(method, staff+path, strings.NewReader(form.Encode())))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.SetBasicAuth("staff", "secret")
		response := testkit.Must(http.DefaultClient.Do(req))
		defer response.Body.Close()
		return response.StatusCode, string(testkit.Must(io.ReadAll(response.Body)))
	}
	change := func(fields ...string) {
		t.Helper()
		of := append([]string{"policy", "api key", "client", "alice-ci"}, fields...)
		repeated := false
		require.True(t, testkit.BecomesTrue(nil, func() bool { // what a busy machine does not confirm is repeated
			code, text := send(http.MethodPost, "/change", of...)
			ended := repeated && strings.Contains(text, "has no such override any more")
			repeated = true
			return ended || code == http.StatusOK && strings.Contains(text, "Done: ")
		}), fields)
	}
	becomes := func(want int) {
		t.Helper()
		require.True(t, testkit.BecomesTrue(nil, func() bool { return ask() == want }), want)
	}
	dryRun := func(on string) {
		t.Helper()
		code, _ := send(http.MethodPut, "/dry-run/"+on)
		require.Equal(t, http.StatusNoContent, code)
	}
	require.Equal(t, http.StatusUnauthorized, testkit.Must(http.Get(staff+"/")).StatusCode)
	change("do", "block", "for", "1h")
	becomes(http.StatusTooManyRequests)
	dryRun("on")
	require.Equal(t, http.StatusOK, ask(), "nobody is denied")
	dryRun("off")
	becomes(http.StatusTooManyRequests)
	change("do", "reset")
	becomes(http.StatusOK)
	change("do", "override", "limits", "0/m", "ends", "1h")
	becomes(http.StatusTooManyRequests)
	change("do", "end")
	change("do", "reset") // it has asked often meanwhile
	becomes(http.StatusOK)
	require.True(t, testkit.BecomesTrue(nil, func() bool { // what carol asks for
		_, page := send(http.MethodGet, "/policy?name=api+key")
		return regexp.MustCompile(`<bdi>carol</bdi></button>`).MatchString(page)
	}))
}

// TestBesideAnotherApplication of the same Redis, whose keys and number of processes are its own. The program says how
// to ask it.
func TestBesideAnotherApplication(t *testing.T) {
	rdb, _ := testkit.NewMiniredis(t)
	g := start(t, rdb.Options().Addr, false)
	require.Contains(t, g.said, "alice, alice-ci, bob, carol, dave")
	require.Contains(t, g.said, "-H 'X-API-Key: alice' -d '{\"prompt\"")
	require.Contains(t, g.said, g.address+"/v1/complete")
	_, text := g.ask("mallory", cheap)
	require.Contains(t, text, "alice, alice-ci, bob, carol, dave")
	response, _ := g.ask("dave", cheap)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.True(t, testkit.BecomesTrue(nil, func() bool { // what contrib/top reports comes last
		return len(testkit.Must(rdb.Keys(t.Context(), "gateway:denied:*").Result())) > 0
	}))
	for _, key := range testkit.Must(rdb.Keys(t.Context(), "*").Result()) {
		require.Contains(t, key, "gateway:")
	}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.address+"/staff/policies", nil)
	request.RequestURI = ""
	request.SetBasicAuth("staff", "secret")
	page := testkit.Must(http.DefaultClient.Do(request))
	defer page.Body.Close()
	require.Contains(t, string(testkit.Must(io.ReadAll(page.Body))), "api key")
}
