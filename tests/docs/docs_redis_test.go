//go:build integration

package docs_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// What a user of Redis must be allowed to do.

// TestDocumentedPrivilegesAreEnough lets a user run nothing but what docs/operations.md says. A cluster client must
// also be told of the slots.
func TestDocumentedPrivilegesAreEnough(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]ginlimit.Algorithm{
		"TokenBucket": ginlimit.TokenBucket, "FixedWindow": ginlimit.FixedWindow, "SlidingWindow": ginlimit.SlidingWindow,
	} {
		testkit.Run(t, name, func(t *testing.T) {
			addr := testkit.StartRedis(t)
			user := testkit.Restrict(t, addr, name)
			rdb := redis.NewClient(&user)
			defer rdb.Close()
			doEverything(t, rdb, a)
			operate(t, testkit.Connect(t, addr), rdb, a)
			if a != ginlimit.TokenBucket {
				limiter := testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a))
				for i, s := range testkit.WindowTrace(5, 300) {
					_, err := s.Apply(t.Context(), limiter)
					require.NoError(t, err, "%s, step %d, %s", a, i, s)
				}
			}
			testkit.RequireNothingDenied(t, addr)
		})
	}
	testkit.Run(t, "cluster", func(t *testing.T) {
		addrs := testkit.StartCluster(t, 3)
		for _, addr := range addrs {
			testkit.Restrict(t, addr, "TokenBucket", testkit.PrivilegesOf(t, "On a cluster add")...)
		}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Username: "app", Password: "secret"})
		defer rdb.Close()
		doEverything(t, rdb, ginlimit.TokenBucket)
		testkit.AskMany(t, testkit.NewLimiter(t, rdb))
		for _, addr := range addrs {
			assert.NotContains(t, testkit.CommandCalls(t, testkit.Connect(t, addr)), "command",
				"asked for by a client that does not know")
		}
		person := testkit.ConnectCluster(t, addrs...)
		operate(t, person, rdb, ginlimit.TokenBucket)
		for _, addr := range addrs {
			testkit.RequireNothingDenied(t, addr)
		}
	})
	testkit.Run(t, "slots, bans, count of processes", func(t *testing.T) {
		addr := testkit.StartRedis(t)
		user := testkit.Restrict(t, addr, "FixedWindow")
		rdb := redis.NewClient(&user)
		defer rdb.Close()
		holdEverything(t, testkit.Connect(t, addr), rdb)
		testkit.RequireNothingDenied(t, addr)
	})
	testkit.Run(t, "calendar quotas, Ping", func(t *testing.T) {
		addr := testkit.StartRedis(t)
		more := append(testkit.PrivilegesOf(t, "Calendar quotas also need"),
			testkit.PrivilegesOf(t, "`Limiter.Ping` needs")...)
		user := testkit.Restrict(t, addr, "TokenBucket", more...)
		rdb := redis.NewClient(&user)
		defer rdb.Close()
		month := ginlimit.PerCalendar(7, ginlimit.CalendarMonth(time.UTC, 1))
		callEverything(t, testkit.NewLimiter(t, rdb), []ginlimit.Limit{month}, []ginlimit.Limit{month, ginlimit.PerHour(7)})
		require.NoError(t, testkit.NewLimiter(t, rdb).Ping(t.Context()))
		testkit.RequireNothingDenied(t, addr)
	})
	testkit.Run(t, "without overrides", func(t *testing.T) {
		addr := testkit.StartRedis(t)
		user := testkit.Restrict(t, addr, "TokenBucket", "-hget", "-hgetall")
		rdb := redis.NewClient(&user)
		defer rdb.Close()
		publishEverything(t, testkit.Connect(t, addr), testkit.NewOperated(t, rdb, ginlimit.WithoutOverrides()))
		testkit.RequireNothingDenied(t, addr)
	})
	testkit.Run(t, "nothing for operators", func(t *testing.T) {
		addr := testkit.StartRedis(t)
		user := testkit.Restrict(t, addr, "TokenBucket", "-hget", "-zadd")
		rdb := redis.NewClient(&user)
		defer rdb.Close()
		var log testkit.Buffer
		l := testkit.NewOperated(t, rdb, ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		testkit.Must(testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3)).Allow(t.Context(), "k"))
		refused := func() (n int) {
			return len(testkit.Must(testkit.Connect(t, addr).Do(t.Context(), "ACL", "LOG").Slice()))
		}
		require.True(t, testkit.BecomesTrue(nil, func() bool { return refused() == 2 }), "of HGET, and of the script")
		require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
		require.Contains(t, log.String(), "may not read overrides or publish policies")
	})
	testkit.Run(t, "shares", func(t *testing.T) {
		addr := testkit.StartRedis(t)
		user := testkit.Restrict(t, addr, "TokenBucket", testkit.PrivilegesOf(t, "`WithShares` also needs")...)
		rdb := redis.NewClient(&user)
		defer rdb.Close()
		shareEverything(t, rdb)
		testkit.RequireNothingDenied(t, addr)
		used := testkit.CommandCalls(t, testkit.Connect(t, addr))
		for _, right := range testkit.PrivilegesOf(t, "`WithShares` also needs") {
			assert.Contains(t, used, right[1:], "so the test needs each of them")
		}
	})
	testkit.Run(t, "overrides", func(t *testing.T) {
		addr := testkit.StartRedis(t)
		more := append([]string{"resetkeys"}, testkit.ACLBlock(t, "~ginlimit:{*|*")...)
		application := testkit.Restrict(t, addr, "TokenBucket", more...)
		rights := testkit.ACLBlock(t, "ACL SETUSER operator")
		require.NoError(t, testkit.Connect(t, addr).Do(t.Context(), toAny(rights)...).Err())
		operator := application
		operator.Username = "operator"
		app, person := redis.NewClient(&application), redis.NewClient(&operator)
		defer app.Close()
		defer person.Close()
		l := testkit.NewOperated(t, app)
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3), ginlimit.InFlight(9))
		long := strings.Repeat("k", 100)
		reserve := func() ginlimit.Limit {
			r := testkit.Must(p.Reserve(t.Context(), long, 1))
			r.Release()
			return r.Results()[0].Limit
		}
		reserve()
		people := testkit.NewOperated(t, person)
		require.True(t, testkit.BecomesTrue(nil, func() bool {
			all := testkit.Must(people.Policies(t.Context()))
			return len(all) == 1
		}))
		testkit.RequireNothingDenied(t, addr)
		o := ginlimit.Override{Policy: "api", Limits: []ginlimit.Limit{ginlimit.PerMinute(90)},
			Until: time.Now().Add(time.Hour)}
		require.NoError(t, people.Override(t.Context(), o))
		require.True(t, testkit.BecomesTrue(nil, func() bool { return reserve() == ginlimit.PerMinute(90) }))
		all, err := people.Overrides(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.NoError(t, people.Override(t.Context(), ginlimit.Override{Policy: "api"}))
		testkit.RequireNothingDenied(t, addr)
		require.ErrorContains(t, l.Override(t.Context(), o), "NOPERM")
		_, err = testkit.NewPolicy(t, people, "api", ginlimit.PerMinute(3)).Allow(t.Context(), "k")
		require.ErrorIs(t, err, ginlimit.ErrUnavailable, "who operates it takes no tokens")
	})
	testkit.Run(t, "plans", func(t *testing.T) {
		addr := testkit.StartRedis(t)
		user := testkit.Restrict(t, addr, "TokenBucket")
		rdb := redis.NewClient(&user)
		defer rdb.Close()
		s := testkit.NewSource()
		plans := testkit.NewPlans(t, rdb, s)
		for want := range int64(3) {
			limit := testkit.Must(testkit.LimitOf(testkit.NewPlans(t, rdb, s), t.Context(), "three"))
			require.Equal(t, ginlimit.PerMinute(3), limit)
			require.Equal(t, want+1, s.Asked.Load(), "kept in Redis, until it is invalidated")
			require.NoError(t, plans.Invalidate(t.Context(), "three"))
		}
		testkit.RequireNothingDenied(t, addr)
	})
}

func doEverything(t *testing.T, rdb redis.UniversalClient, a ginlimit.Algorithm) {
	callEverything(t, testkit.NewLimiter(t, rdb, testkit.WithAlgorithm(a)),
		[]ginlimit.Limit{ginlimit.PerHour(7)}, []ginlimit.Limit{ginlimit.PerMinute(7), ginlimit.PerHour(7)})
}

// callEverything calls every method that needs Redis, under each of some sets of limits.
func callEverything(t *testing.T, limiter *testkit.Limiter, sets ...[]ginlimit.Limit) {
	ctx := t.Context()
	for _, limits := range sets {
		for range 3 {
			require.True(t, testkit.Must(limiter.Allow(ctx, "k", limits...)).Allowed)
		}
		testkit.Must(limiter.AllowUpTo(ctx, "k", 10, limits...))
		testkit.Must(limiter.Peek(ctx, "k", limits...))
		require.NoError(t, limiter.Refund(ctx, "k", 1, limits...))
		require.NoError(t, limiter.Refund(ctx, "k", 100, limits...))
		require.NoError(t, limiter.Block(ctx, "k", time.Hour, limits...))
		require.NoError(t, limiter.Reset(ctx, "k", limits...))
		require.NoError(t, limiter.Wait(ctx, "k", limits...))
		require.NoError(t, limiter.Reset(ctx, "k", limits...))
	}
}

// operate has a limiter with default options do what it does without being asked: count processes, read overrides and
// publish its policies. person sets an override.
func operate(t *testing.T, person, rdb redis.UniversalClient, a ginlimit.Algorithm) {
	l := testkit.Wrap(testkit.Must(ginlimit.NewLimiter(rdb, testkit.Patient(), ginlimit.WithLogger(
		slog.New(slog.DiscardHandler)))), a)
	defer l.Close()
	p := publishEverything(t, person, l)
	require.NoError(t, testkit.NewOperated(t, person).Override(t.Context(), ginlimit.Override{
		Policy: "operated", Limits: []ginlimit.Limit{ginlimit.PerMinute(90)}, Until: time.Now().Add(time.Hour)}))
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		return testkit.Must(p.Allow(t.Context(), "k")).Limit.Rate == 90
	}), "overridden")
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		return person.Exists(t.Context(), "ginlimit:{replicas}:slots").Val() == 1
	}), "counted")
}

// publishEverything has a limiter publish a policy after others that are too old, and returns the policy.
func publishEverything(t *testing.T, person redis.UniversalClient, l *testkit.Limiter) *ginlimit.Policy {
	ctx := t.Context()
	require.NoError(t, person.HSet(ctx, "ginlimit:{policies}", "old", "{}").Err())
	require.NoError(t, person.ZAdd(ctx, "ginlimit:{policies}:seen", redis.Z{Score: 1, Member: "old"}).Err())
	require.NoError(t, person.ZAdd(ctx, "ginlimit:{policies}:processes", redis.Z{Score: 1, Member: "old P"}).Err())
	p := testkit.NewPolicy(t, l, "operated", ginlimit.PerMinute(30))
	testkit.Must(p.Allow(ctx, "k"))
	require.True(t, testkit.BecomesTrue(nil, func() bool {
		all := person.HGetAll(ctx, "ginlimit:{policies}").Val()
		return len(all) == 1 && all["old"] == ""
	}), "published")
	return p
}

// holdEverything has two limiters hold slots of a client, and another process end, which person writes.
func holdEverything(t *testing.T, person, rdb *redis.Client) {
	ctx := t.Context()
	var held []*ginlimit.Reservation
	var policies []*ginlimit.Policy
	counts := testkit.Must(ginlimit.NewLimiter(rdb, testkit.Patient(), ginlimit.WithoutOverrides(),
		ginlimit.WithDenyCache(0)))
	defer counts.Close()
	for _, l := range []*testkit.Limiter{testkit.Wrap(counts, ginlimit.TokenBucket), testkit.NewLimiter(t, rdb)} {
		p := testkit.NewPolicy(t, l, "slots", ginlimit.InFlight(4), ginlimit.WithBan(time.Second, time.Second),
			ginlimit.WithQueue(1, time.Millisecond))
		held, policies = append(held, testkit.Reserve(t, p), testkit.Reserve(t, p)), append(policies, p)
	}
	const key = "ginlimit:{slots|alice}:slots"
	ends, sums, _ := strings.Cut(person.HGet(ctx, key, "all").Val(), " ")
	require.Regexp(t, " 4 2$", sums)
	for range 2 {
		require.NoError(t, person.HSet(ctx, key, "all", ends+" 0 5 3", "PX", "1 1 1 0 ").Err())
		_, err := policies[0].Reserve(ctx, "alice", 1)
		require.NoError(t, err, "denied, and the process has ended")
		require.EqualValues(t, 3, person.HLen(ctx, key).Val())
	}
	for _, r := range held {
		r.Release()
	}
	require.NoError(t, policies[0].Reset(ctx, "alice"))
	require.True(t, testkit.BecomesTrue(nil, func() bool { return person.Exists(ctx, key).Val() == 0 }))
}

// shareEverything calls what tenants of a shared limit may call, in every state of a bucket.
func shareEverything(t *testing.T, rdb redis.UniversalClient) {
	limiter, ctx := testkit.NewLimiter(t, rdb), t.Context()
	limit := ginlimit.PerSecond(100).WithBurst(100)
	shared := testkit.Must(limiter.Policy("shared", limit,
		ginlimit.WithShares(func(*gin.Context) (string, int) { return "", 1 })))
	one, other := shared.Share("one", 1), shared.Share("other", 2)
	for _, tenant := range []*ginlimit.Policy{one, other, one} {
		require.True(t, testkit.Must(tenant.AllowN(ctx, "k", 20)).Allowed)
	}
	for _, tenant := range []*ginlimit.Policy{one, other} {
		testkit.Must(tenant.AllowN(ctx, "k", 90))
		testkit.Must(tenant.Peek(ctx, "k"))
		testkit.Must(tenant.Status(ctx, "k"))
		require.NoError(t, tenant.Refund(ctx, "k", 100))
	}
	require.NoError(t, testkit.Must(one.Reserve(ctx, "k", 10)).Settle(ctx, 1))
	require.NoError(t, shared.Reset(ctx, "k"))
	require.NoError(t, other.Wait(ctx, "k"))
	require.NoError(t, one.Reset(ctx, "k"))

	slow := testkit.Must(limiter.Policy("slow", ginlimit.PerHour(100),
		ginlimit.WithShares(func(*gin.Context) (string, int) { return "", 1 })))
	for _, name := range []string{"one", "other"} {
		require.NoError(t, slow.Share(name, 1).Wait(ctx, "k"))
	}
	require.NoError(t, slow.Share("one", 1).Reset(ctx, "k")) // nothing is left of one, but of the other
}

// TestReadmeProgramRuns builds the quickstart in a module of its own, and sends it six requests:
// the last is answered as the README shows.
func TestReadmeProgramRuns(t *testing.T) {
	t.Parallel()
	dir, listen, server := newModule(t), "127.0.0.1:"+testkit.FreePort(t), testkit.StartRedis(t)
	program := strings.NewReplacer("127.0.0.1:6379", server, ":8080", listen).Replace(goBlocks(t, "README.md")[0])
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	goIn(t, dir, "build", "-o", "quickstart", ".")
	text := testkit.Must(os.ReadFile("README.md"))
	shown := regexp.MustCompile("(?s)```text\n(HTTP/1.1 429 .*?)\n\n(.*?)\n```").FindSubmatch(text)
	require.NotNil(t, shown)

	var left, last []string
	for range 10 { // on a busy machine Redis may be late, and the process decide by itself
		var decided bool
		if left, last, decided = sixRequests(t, filepath.Join(dir, "quickstart"), listen); decided {
			break
		}
		rdb := redis.NewClient(&redis.Options{Addr: server})
		require.NoError(t, rdb.FlushAll(t.Context()).Err()) // of the test's own
		require.NoError(t, rdb.Close())
	}
	require.Equal(t, []string{"200 4", "200 3", "200 2", "200 1", "200 0", "429 0"}, left)
	require.Equal(t, []string{string(shown[1]), string(shown[2])}, last)
}

// sixRequests runs a program, and returns the statuses and what was left, the head and body of the last response, and
// whether Redis decided about all.
func sixRequests(t *testing.T, program, listen string) (left, last []string, decided bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	decided = true
	for range 6 {
		var response *http.Response
		require.True(t, testkit.BecomesTrue(t.Context().Done(), func() (ok bool) {
			var err error
			response, err = http.Get("http://" + listen + "/ping")
			return err == nil
		}))
		h := response.Header
		decided = decided && h.Get("X-RateLimit-Status") == ""
		left = append(left, fmt.Sprint(response.StatusCode, " ", h.Get("X-RateLimit-Remaining")))
		var head strings.Builder
		fmt.Fprintln(&head, response.Proto, response.Status)
		require.NoError(t, h.WriteSubset(&head, map[string]bool{"Date": true, "Content-Length": true}))
		body := testkit.Must(io.ReadAll(response.Body))
		require.NoError(t, response.Body.Close())
		last = []string{strings.TrimSpace(strings.ReplaceAll(head.String(), "\r", "")), string(body)}
	}
	return left, last, decided
}

// TestTestsOfDocumentsPass puts the files of docs/guide.md into the quickstart's folder, and runs them by go test.
func TestTestsOfDocumentsPass(t *testing.T) {
	t.Parallel()
	dir := newModule(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(goBlocks(t, "README.md")[0]), 0o600))
	tests := 0
	for i, block := range goBlocks(t, "docs/guide.md") {
		if !strings.HasPrefix(block, "package ") {
			continue
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, fileName(fmt.Sprintf("block%d", i), block)), []byte(block), 0o600))
		tests += strings.Count(block, "\nfunc Test")
	}
	require.Equal(t, 2, tests)
	require.Equal(t, tests, strings.Count(goIn(t, dir, "test", "-v"), "--- PASS: Test"))
}

// newModule returns a folder with a module that has done what the README says to get this one.
func newModule(t *testing.T) string {
	t.Helper()
	root := testkit.Must(os.Getwd())
	dir := t.TempDir()
	goIn(t, dir, "mod", "init", "quickstart")
	goIn(t, dir, "mod", "edit", "-replace", "github.com/ginlimit/ginlimit="+root) // this commit is not published
	goIn(t, dir, "get", "github.com/ginlimit/ginlimit@v0.0.0")
	return dir
}

// goIn runs the go command in a folder, and returns what it prints.
func goIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// toAny returns words as arguments of a command.
func toAny(words []string) (all []any) {
	for _, word := range words {
		all = append(all, word)
	}
	return all
}
