package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestExample runs the program on a free port and does what it says to try.
func TestExample(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "127.0.0.1:0", "", in, ginlimit.WithTimeout(time.Minute)) }() // of a slow machine

	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "Ctrl-C") {
			break
		}
	}
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(said.String())
	require.NotEmpty(t, address, said.String())
	second := regexp.MustCompile(`localhost:(\d+)/ping +# a second process`).FindStringSubmatch(said.String())
	require.NotNil(t, second, said.String())

	get := func(path string) *http.Response {
		response := testkit.Must(http.Get("http://" + address + path))
		discard(t, response)
		return response
	}
	response := get("/ping")
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "100", response.Header.Get("X-RateLimit-Limit"))
	require.Equal(t, "99", response.Header.Get("X-RateLimit-Remaining"))
	shared := testkit.Must(http.Get("http://127.0.0.1:" + second[1] + "/ping"))
	discard(t, shared)
	require.Equal(t, "98", shared.Header.Get("X-RateLimit-Remaining"), "the second process shares the bucket")
	require.Equal(t, "19", get("/search").Header.Get("X-RateLimit-Remaining"))
	for attempt := range 6 {
		response := testkit.Must(http.Post("http://"+address+"/login", "text/plain", nil))
		discard(t, response)
		want := http.StatusOK
		if attempt == 5 {
			want = http.StatusTooManyRequests
		}
		require.Equal(t, want, response.StatusCode)
	}

	stop()
	require.NoError(t, <-ended)
	for _, stopped := range []string{address, "127.0.0.1:" + second[1]} {
		require.Error(t, testkit.Err(http.Get("http://"+stopped+"/ping")), "it has stopped")
	}
}

// discard reads the body to its end, so that the next request uses the same connection.
func discard(t *testing.T, response *http.Response) {
	testkit.Must(io.Copy(io.Discard, response.Body))
	require.NoError(t, response.Body.Close())
}

func TestConnectionWithoutARequestEndsWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		listener, ended := make(pipes), make(chan error, 1)
		go func() { ended <- serve(ctx, listener, http.NotFoundHandler()) }()
		here, there := net.Pipe()
		listener <- there
		synctest.Wait() // until the server waits for a request
		stop()
		require.NoError(t, <-ended)
		require.ErrorIs(t, testkit.Err(here.Read(make([]byte, 1))), io.EOF)
	})
}

// pipes is a listener that accepts what is sent to it.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error { close(p); return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

func TestBadArgumentsAreErrors(t *testing.T) {
	require.Error(t, run(t.Context(), "127.0.0.1:0", "nonsense://", io.Discard))
	require.Error(t, run(t.Context(), "nowhere:-1", "", io.Discard))
}

// TestErrorHasNoPassword, however the URL of Redis is mistyped.
func TestErrorHasNoPassword(t *testing.T) {
	t.Parallel()
	for _, redisURL := range []string{"redis://:sesame#@a", "redis://u:?sesame@a", "redis://u:sesame/@a", "redis://u:%sesame@a",
		"redis://u:1/sesame@a", "sesame://a", "redis://a:sesame", "redis://u:sesame\n@a"} {
		err := run(t.Context(), "127.0.0.1:0", redisURL, io.Discard)
		require.ErrorContains(t, err, "REDIS_URL is none that go-redis can read")
		require.NotContains(t, err.Error(), "sesame", redisURL)
	}
}
