package top

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func start(t testing.TB, rdb redis.UniversalClient, opts ...Option) *Reporter {
	t.Helper()
	r := testkit.Must(New(rdb, append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, opts...)...))
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// deny has a policy deny clients.
func deny(r *Reporter, policy string, clients ...string) {
	for _, c := range clients {
		r.Observe(context.Background(), ginlimit.Event{Name: policy, Outcome: ginlimit.OutcomeDenied}, c)
	}
}

func denied(t *testing.T, rdb redis.UniversalClient, policy string) []Client {
	t.Helper()
	all := testkit.Must(Denied(t.Context(), rdb, ginlimit.DefaultPrefix, policy))
	return all
}

func TestFaultsOfOptions(t *testing.T) {
	t.Parallel()
	type fault struct {
		index        int
		option, text string
	}
	noClient := fault{-1, "rdb", "the Redis client is nil"}
	for name, row := range map[string]struct {
		rdb  redis.UniversalClient
		opts []Option
		want []fault
	}{
		"no client": {nil, nil, []fault{noClient}},
		"options": {(*redis.Client)(nil), []Option{nil, WithPrefix("{"), WithOutcomes(), WithKeySecret([]byte("short")),
			WithInterval(0), WithLogger(nil)}, []fault{noClient, {0, "", "option 1 is nil"},
			{1, "WithPrefix", `WithPrefix("{"): braces are reserved for the hash tag`},
			{3, "WithKeySecret", "WithKeySecret: 5 bytes; want at least 16"},
			{4, "WithInterval", "WithInterval(0s): want 1s to 1m"}, {5, "WithLogger", "WithLogger: the logger is nil"}}},
	} {
		_, err := New(row.rdb, row.opts...)
		joined, ok := err.(interface{ Unwrap() []error })
		require.True(t, ok, name)
		require.Len(t, joined.Unwrap(), len(row.want), name)
		for i, err := range joined.Unwrap() {
			var of *ginlimit.OptionError
			require.ErrorAs(t, err, &of)
			require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
			require.Equal(t, row.want[i], fault{of.Index, of.Option, row.want[i].text})
			require.EqualError(t, err, "ginlimit: invalid argument: top: "+row.want[i].text)
		}
	}
}

// TestDenialsOfAllProcesses: they are in the list after an interval, without dry runs and without other outcomes.
func TestDenialsOfAllProcesses(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		one, two := start(t, b.Redis), start(t, b.Connect(t), WithOutcomes())
		deny(one, "login", "a", "b", "a", "")
		deny(two, "login", "b", "c", "b", "b")
		deny(two, "other", "x")
		for range 3 {
			one.Observe(t.Context(), ginlimit.Event{Name: "login"}, "a")
			two.Observe(t.Context(), ginlimit.Event{Name: "login"}, "a")
		}
		two.Observe(t.Context(), ginlimit.Event{Name: "login", Outcome: ginlimit.OutcomeSkipped}, "")
		two.Observe(t.Context(), ginlimit.Event{Name: "login", Outcome: ginlimit.OutcomeFailed}, "")
		two.Observe(t.Context(), ginlimit.Event{Name: "login", Outcome: ginlimit.OutcomeSettled, Allowed: true}, "a")
		two.Observe(t.Context(), ginlimit.Event{Name: "login", Outcome: ginlimit.OutcomeDenied, DryRun: true}, "d")
		require.Empty(t, denied(t, b.Redis, "login"))
		time.Sleep(DefaultInterval)
		synctest.Wait()
		require.Equal(t, []Client{{Key: "b", Denials: 4}, {Key: "a", Denials: 2}, {Key: "c", Denials: 1}}, denied(t, b.Redis, "login"))
		require.Equal(t, []Client{{Key: "x", Denials: 1}}, denied(t, b.Redis, "other"))
		require.Empty(t, denied(t, b.Redis, "third"))
		all := testkit.Must(Minutes(t.Context(), b.Redis, ginlimit.DefaultPrefix, "login"))
		require.Len(t, all, 1)
		require.Equal(t, Minute{all[0].Start, 3, 8, 1, 1}, all[0])
		require.Equal(t, time.Now().Truncate(time.Minute).Unix(), all[0].Start.Unix())

		deny(one, "login", "late")
		require.NoError(t, one.Close())
		require.NoError(t, one.Close())
		require.Equal(t, Client{Key: "late", Denials: 1}, denied(t, b.Redis, "login")[3], "Close reports")
	})
}

// TestTenMinutes: a denial stays for ten minutes, and no longer than eleven; then its key expires.
func TestTenMinutes(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		r, other := start(t, b.Redis), start(t, b.Connect(t))
		deny(other, "p", "a")
		time.Sleep(9 * time.Minute)
		deny(r, "p", "b")
		time.Sleep(time.Minute)
		require.Len(t, denied(t, b.Redis, "p"), 2)
		time.Sleep(time.Minute + DefaultInterval)
		require.Equal(t, []Client{{Key: "b", Denials: 1}}, denied(t, b.Redis, "p"))
		deny(r, "p", "c")
		time.Sleep(DefaultInterval + time.Millisecond)
		fields := testkit.Must(b.Redis.HKeys(t.Context(), "ginlimit:denied:{p}").Result())
		require.Len(t, fields, 3, "two minutes, and what was seen")
		seen := testkit.Must(b.Redis.HGet(t.Context(), "ginlimit:denied:{p}", "seen").Result())
		require.Regexp(t, `^`+r.process+` \d+ \d+\n$`, seen, "not the other process any more")
		time.Sleep(11 * time.Minute)
		require.Empty(t, b.Mini.Keys())
	})
}

// TestOutage: nobody waits, what was counted is reported when Redis is back, and after ten minutes it is dropped.
func TestOutage(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		var log testkit.Buffer
		r := start(t, b.Redis, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		away := func(minutes int, client string) {
			b.Mini.SetError("LOADING Redis is loading the dataset in memory")
			for range 60 * minutes {
				deny(r, "p", client)
				time.Sleep(time.Second)
				require.LessOrEqual(t, pending(r, "p"), 12)
			}
			b.Mini.SetError("")
			time.Sleep(DefaultInterval)
			synctest.Wait()
		}
		away(3, "a")
		require.Equal(t, []Client{{Key: "a", Denials: 180}}, denied(t, b.Redis, "p"))
		all := testkit.Must(Minutes(t.Context(), b.Redis, ginlimit.DefaultPrefix, "p"))
		require.GreaterOrEqual(t, len(all), 3, "each in its minute")
		warnings := strings.Count(log.String(), `level=WARN msg="ginlimit: denials and use are not reported" reason=LOADING`)
		require.Positive(t, warnings)
		require.LessOrEqual(t, warnings, 4, "at most one a minute")
		away(25, "b")
		now := denied(t, b.Redis, "p")
		require.Len(t, now, 1)
		require.Equal(t, "b", now[0].Key)
		require.LessOrEqual(t, now[0].Denials, int64(12*60))
		require.GreaterOrEqual(t, now[0].Denials, int64(9*60))
	})
}

// pending returns how many reports of a policy wait. The goroutine that reports must be idle.
func pending(r *Reporter, name string) int {
	synctest.Wait()
	p := (*r.policies.Load())[name]
	if p == nil {
		return 0
	}
	return len(p.pending)
}

// TestCloseIsBounded: it waits for a Redis that hangs for four seconds, and its goroutine ends with the call.
func TestCloseIsBounded(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		hanging, end := b.Connect(t), make(chan struct{})
		hanging.AddHook(testkit.EveryCall(func(func() error) error {
			<-end
			return redis.ErrClosed
		}))
		r := start(t, hanging)
		deny(r, "p", "a")
		began := time.Now()
		require.NoError(t, r.Close())
		require.Equal(t, 4*time.Second, time.Since(began))
		deny(r, "p", "a")
		close(end)
		synctest.Wait()
		<-r.stopped
	})
}

// TestALostReplyCountsNothingTwice: Redis has a report whose reply was lost, and gets it again.
func TestALostReplyCountsNothingTwice(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		lossy, lost := b.Connect(t), atomic.Bool{}
		lossy.AddHook(testkit.EveryCall(func(send func() error) error {
			if err := send(); err != nil || !lost.Load() {
				return err
			}
			return errors.New("the reply is lost")
		}))
		r := start(t, lossy)
		deny(r, "other", "a") // so Redis knows the script
		time.Sleep(DefaultInterval + time.Millisecond)
		lost.Store(true)
		deny(r, "p", "a", "a")
		time.Sleep(2 * DefaultInterval)
		deny(r, "p", "a")
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		require.Equal(t, []Client{{Key: "a", Denials: 2}}, denied(t, b.Redis, "p"))
		require.Equal(t, 2, pending(r, "p"))
		lost.Store(false)
		time.Sleep(DefaultInterval)
		synctest.Wait()
		require.Equal(t, []Client{{Key: "a", Denials: 3}}, denied(t, b.Redis, "p"))
	})
}

// TestAnOldReportIsNotTaken: Redis would have dropped its minute.
func TestAnOldReportIsNotTaken(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	r, p := &Reporter{rdb: rdb, config: config{prefix: "test"}, process: "P"}, newPolicy("p")
	newExact().count(p, "a", rand.New(rand.NewPCG(1, 1)), 1)
	require.NoError(t, r.send(t.Context(), p, &report{summary: p.take(r.keys), to: time.Now().Add(-11 * time.Minute)}))
	require.Empty(t, rdb.Keys(t.Context(), "*").Val())
}

// TestReportsMergeInRedis: of many processes, in minutes of any order, as the summaries do in a process.
func TestReportsMergeInRedis(t *testing.T) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) {
		rdb, _ := testkit.NewMiniredis(t)
		testMerges(t, rdb, 1, 2)
	})
	t.Run("redis", func(t *testing.T) { testMerges(t, testkit.Connect(t, testkit.StartRedis(t)), 2, 4) })
}

func testMerges(t *testing.T, rdb *redis.Client, seeds uint64, processes int) {
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 2))
		for name, next := range streams(random) {
			policy, exact := fmt.Sprint(name, seed), newExact()
			for process := range processes {
				r := &Reporter{rdb: rdb, config: config{prefix: "test"}, process: fmt.Sprint("P", process)}
				for range 1 + random.IntN(4) {
					p := newPolicy(policy)
					for range random.IntN(3000) {
						exact.count(p, next(), random, 2)
					}
					s := p.take(r.keys)
					if s.isEmpty() {
						continue
					}
					to := &report{summary: s, to: time.Now().Add(-time.Duration(random.IntN(10)) * time.Minute)}
					require.NoError(t, r.send(t.Context(), p, to))
				}
			}
			all := testkit.Must(read(t.Context(), rdb, "test", policy))
			var sum summary
			for _, m := range all {
				sum = sum.merge(m.summary)
			}
			t.Log(seed, name)
			exact.requireBounds(t, sum)
		}
	}
}

// TestClientsHaveTheTextOfTheLimitersKeys: with a secret, and without one if the key cannot stand there as it is.
func TestClientsHaveTheTextOfTheLimitersKeys(t *testing.T) {
	t.Parallel()
	secret := []byte("a secret of 16 b")
	long := strings.Repeat("x", 2*maxKey)
	for _, row := range []struct {
		client string
		opts   []ginlimit.LimiterOption
		own    []Option
		hashed bool
	}{
		{"203.0.113.7", nil, nil, false}, {`a|b\c`, nil, nil, false}, {"#a", nil, nil, false}, {"=", nil, nil, false},
		{"a{b}", nil, nil, true}, {"a\nb", nil, nil, true}, {"Zoë", nil, nil, true}, {long[:100], nil, nil, true},
		{long, nil, nil, true},
		{"203.0.113.7", []ginlimit.LimiterOption{ginlimit.WithKeySecret(secret)}, []Option{WithKeySecret(secret)}, true},
		{long, []ginlimit.LimiterOption{ginlimit.WithKeySecret(secret)}, []Option{WithKeySecret(secret)}, true},
	} {
		rdb, _ := testkit.NewMiniredis(t)
		r := start(t, rdb, row.own...)
		limiter := testkit.Must(ginlimit.NewLimiter(rdb, append(row.opts, ginlimit.WithTimeout(testkit.Patience),
			ginlimit.WithReplicas(1), ginlimit.WithClientObserver(r.Observe))...))
		policy, err := limiter.Policy("p", ginlimit.PerHour(1))
		require.NoError(t, err)
		for range 3 {
			testkit.Must(policy.Allow(t.Context(), row.client))
		}
		require.NoError(t, limiter.Close())
		require.NoError(t, r.Close())
		want := Client{Key: row.client, Hashed: row.hashed, Denials: 2}
		if row.hashed {
			keys := testkit.Must(rdb.Keys(t.Context(), "ginlimit:{#*").Result())
			require.Len(t, keys, 1)
			want.Key, _, _ = strings.Cut(strings.TrimPrefix(keys[0], "ginlimit:{"), "}")
		}
		require.Equal(t, []Client{want}, denied(t, rdb, "p"))
	}
}

// TestForeignValues: they are errors, and stay.
func TestForeignValues(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		r := start(t, b.Redis)
		require.NoError(t, b.Redis.Set(t.Context(), "ginlimit:denied:{p}", "foreign", 0).Err())
		field := fmt.Sprint(time.Now().Unix() / 60)
		require.NoError(t, b.Redis.HSet(t.Context(), "ginlimit:denied:{q}", field, "2 newer").Err())
		deny(r, "p", "a")
		deny(r, "q", "a")
		deny(r, "good", "a")
		time.Sleep(DefaultInterval + time.Millisecond)
		_, err := Denied(t.Context(), b.Redis, ginlimit.DefaultPrefix, "p")
		require.ErrorContains(t, err, `top: reports of policy "p": `)
		require.ErrorContains(t, err, "WRONGTYPE")
		_, err = Minutes(t.Context(), b.Redis, ginlimit.DefaultPrefix, "q")
		require.EqualError(t, err, `top: key "ginlimit:denied:{q}": its text is no summary that this version can read`)
		require.Len(t, denied(t, b.Redis, "good"), 1, "the others are reported")
		require.Equal(t, "2 newer", b.Mini.HGet("ginlimit:denied:{q}", field))
	})
}

// TestManyGoroutines count each denial once.
func TestManyGoroutines(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	r := start(t, rdb, WithInterval(time.Second))
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 500 {
				deny(r, "p", fmt.Sprint(i%4))
			}
		})
	}
	all.Wait()
	require.NoError(t, r.Close())
	for _, c := range denied(t, rdb, "p") {
		require.Equal(t, Client{Key: c.Key, Denials: 2000}, c)
	}
	require.Len(t, denied(t, rdb, "p"), 4)
}

// TestDocumentedRightsAreEnough to report, to drop what is too old, and to read.
func TestDocumentedRightsAreEnough(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	admin := testkit.Connect(t, addr)
	_, line, ok := strings.Cut(testkit.Read(t, "contrib/top/README.md"), "operations.md#acl): ")
	require.True(t, ok)
	rule := []any{"ACL", "SETUSER", "top", "reset", "on", ">secret"}
	for _, word := range strings.Fields(line) {
		if word = strings.Trim(word, "`,."); strings.ContainsAny(word, "+~") {
			rule = append(rule, word)
		}
	}
	require.NoError(t, admin.Do(t.Context(), rule...).Err())
	rdb := redis.NewClient(&redis.Options{Addr: addr, Username: "top", Password: "secret"})
	defer rdb.Close()
	require.NoError(t, admin.HSet(t.Context(), "ginlimit:denied:{p}", "1", summary{}.text()).Err()) // a minute of 1970
	r := testkit.Must(New(rdb, WithInterval(time.Second), WithLogger(slog.New(slog.DiscardHandler))))
	deny(r, "p", "a")
	require.True(t, testkit.BecomesTrue(nil, func() bool { return len(denied(t, rdb, "p")) == 1 }))
	require.NoError(t, r.Close())
	require.EqualValues(t, 2, admin.HLen(t.Context(), "ginlimit:denied:{p}").Val(), "a minute, and the processes")
	testkit.RequireNothingDenied(t, addr)
}
