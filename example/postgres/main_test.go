package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	os.Exit(m.Run())
}

// missing skips a test that cannot run here; in CI it fails.
func missing(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		require.NoError(t, err, what)
	}
	t.Skipf("needs %s: %v", what, err)
}

// connectPostgres returns a database with the schema, apart from what else is there.
func connectPostgres(t *testing.T) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(cmp.Or(os.Getenv("DATABASE_URL"), "postgres://postgres@127.0.0.1:5432/test"))
	require.NoError(t, err)
	name := fmt.Sprintf("ginlimit_example_%d_%d", os.Getpid(), time.Now().UnixNano())
	config.ConnConfig.RuntimeParams["search_path"] = name
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	if err := db.Ping(t.Context()); err != nil {
		missing(t, "PostgreSQL at DATABASE_URL", err)
	}
	_, err = db.Exec(t.Context(), "CREATE SCHEMA "+name)
	require.NoError(t, err)
	t.Cleanup(func() { // db is closed by then
		admin, err := pgxpool.NewWithConfig(context.Background(), config)
		require.NoError(t, err)
		defer admin.Close()
		_, err = admin.Exec(context.Background(), "DROP SCHEMA "+name+" CASCADE")
		assert.NoError(t, err)
	})
	for range 2 { // at every start of the application
		_, err = db.Exec(t.Context(), schema)
		require.NoError(t, err)
	}
	return db
}

// connectRedis starts a redis-server of the test's own.
func connectRedis(t *testing.T) *redis.Client {
	t.Helper()
	path, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"))
	if err != nil {
		missing(t, "redis-server (apt-get install redis-server)", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	server := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	t.Cleanup(func() { _ = rdb.Close() })
	require.Eventually(t, func() bool {
		return rdb.Ping(context.Background()).Err() == nil
	}, 20*time.Second, 10*time.Millisecond)
	return rdb
}

// lines is what a program prints, line by line.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		l <- line
	}
	return len(p), nil
}

// TestChangedPlansHold runs the application, at the address that it prints, and changes what clients may do.
func TestChangedPlansHold(t *testing.T) {
	db, rdb := connectPostgres(t), connectRedis(t)
	t.Setenv("REDIS_URL", "redis://"+rdb.Options().Addr)
	config := db.Config().ConnConfig
	t.Setenv("DATABASE_URL",
		fmt.Sprintf("postgres://%s@%s/%s?search_path=%s", url.UserPassword(config.User, config.Password),
			net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port))), config.Database, config.RuntimeParams["search_path"]))
	ctx, stop := context.WithCancel(t.Context())
	printed, ended := make(lines, 100), make(chan error, 1)
	go func() { ended <- run(ctx, "127.0.0.1:0", printed) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()
	var first string
	select {
	case first = <-printed:
	case err := <-ended:
		ended <- err
		require.NoError(t, err)
	}
	address, _, found := strings.Cut(strings.TrimPrefix(first, "Listening on "), ". ")
	require.True(t, found, first)

	send := func(method, path, client, body string) (int, http.Header) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set("X-Client-Id", client)
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode, response.Header
	}
	call := func(client string) (int, string) {
		t.Helper()
		code, header := send(http.MethodGet, "/", client, "")
		return code, header.Get("X-Rate-Limit-Policy")
	}
	for _, row := range []struct {
		client, quota string
		change, code  int
		policy        string
	}{
		{"three", "", 0, 200, "3/m"},
		{"three", "0", 204, 429, "0/m"},
		{"three", "-1", 204, 200, "-1/m"},
		{"three", "2147483647", 204, 200, "2147483647/m"},
		{"three", "-2", 400, 200, "2147483647/m"},
		{"three", "2147483648", 400, 200, "2147483647/m"},
		{"three", "", 400, 200, "2147483647/m"},
		{"three", "7; DROP TABLE clients", 400, 200, "2147483647/m"},
		{"new", "", 0, 403, ""},
		{"new", "5", 204, 200, "5/m"},
		{"a b", "6", 204, 200, "6/m"},
		{"x\x00", "6", 400, 0, ""},
		{"\xff", "6", 400, 403, ""},
	} {
		if row.change != 0 {
			code := http.StatusServiceUnavailable
			// Redis may be late on a busy machine
			for tries := 0; code == http.StatusServiceUnavailable && tries < 100; tries++ {
				code, _ = send(http.MethodPut, "/plans/"+url.PathEscape(row.client), "", url.Values{"quota": {row.quota}}.Encode())
			}
			require.Equal(t, row.change, code, "%+v", row)
		}
		if row.code != 0 {
			code, policy := call(row.client)
			require.Equal(t, row.code, code, "%+v", row)
			require.Equal(t, row.policy, policy, "%+v", row)
		}
	}
}

// TestQuotasFromPostgres makes four calls with quotas from a table, and looks at what comes after.
func TestQuotasFromPostgres(t *testing.T) {
	db, rdb := connectPostgres(t), connectRedis(t)
	process := func() *gin.Engine {
		limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(10*time.Second),
			ginlimit.WithFailureMode(ginlimit.FailClosed))
		require.NoError(t, err)
		t.Cleanup(func() { _ = limiter.Close() })
		r, err := router(limiter, db)
		require.NoError(t, err)
		return r
	}
	r := process()
	call := func(client string) *httptest.ResponseRecorder {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		if client != "" {
			request.Header.Set("X-Client-Id", client)
		}
		response := httptest.NewRecorder()
		r.ServeHTTP(response, request)
		return response
	}
	for _, c := range []struct {
		client, policy, quota, used string
		reset                       int // seconds; fewer on a slow machine
		code                        int
	}{
		{"unlimited", "-1/m", "-1", "0", 0, 200},
		{"prohibited", "0/m", "0", "0", 0, 429},
		{"three", "3/m", "3", "1", 20, 200},
		{"nobody", "", "", "", -1, 403},

		{"three", "3/m", "3", "2", 40, 200},
		{"three", "3/m", "3", "3", 60, 200},
		{"three", "3/m", "3", "3", 60, 429},
		{"", "", "", "", -1, 400},
	} {
		response := call(c.client)
		assert.Equal(t, c.code, response.Code, "%+v", c)
		assert.Empty(t, response.Header().Get("X-RateLimit-Limit"), "no other set")
		for name, want := range map[string]string{"Policy": c.policy, "Quota": c.quota, "Used": c.used} {
			assert.Equal(t, want, response.Header().Get("X-Rate-Limit-"+name), "%s of %+v", name, c)
		}
		if reset, err := strconv.Atoi(response.Header().Get("X-Rate-Limit-Reset")); c.reset < 0 {
			assert.Error(t, err, "none")
		} else {
			assert.NoError(t, err)
			assert.InDelta(t, c.reset, reset, 5)
		}
	}

	assert.Equal(t, http.StatusForbidden, call("\xff").Code)

	db.Close() // the database is away, and every plan in Redis is old
	for _, key := range rdb.Keys(t.Context(), "ginlimit:plan:*").Val() {
		text, known := strings.CutPrefix(rdb.Get(t.Context(), key).Val(), "short ") // as it is until it is asked for again
		if !known {
			require.NoError(t, rdb.Del(t.Context(), key).Err()) // a stranger
			continue
		}
		require.NoError(t, rdb.Set(t.Context(), key, text, 24*time.Hour).Err())
	}
	r = process() // which knows none
	assert.Equal(t, http.StatusOK, call("unlimited").Code)
	assert.Equal(t, http.StatusTooManyRequests, call("prohibited").Code)
	assert.Equal(t, http.StatusServiceUnavailable, call("nobody").Code, "strangers are not kept")
	assert.Equal(t, http.StatusServiceUnavailable, call("another").Code, "nobody can say")
}

// TestErrorsHaveNoPassword, however the URLs are mistyped.
func TestErrorsHaveNoPassword(t *testing.T) {
	for _, rest := range []string{"u:sesame#@a", "u:?sesame@a/b", "u:%sesame@a", "u:1/sesame@a?sslmode=sesame", "a:sesame"} {
		t.Setenv("DATABASE_URL", "postgres://"+rest)
		err := run(t.Context(), "127.0.0.1:0", io.Discard)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "sesame", rest)
	}
}
