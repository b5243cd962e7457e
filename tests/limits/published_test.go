package limits_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestPoliciesSayWhoseClientsTheyCount: what methods alone decide on has no key function, until a handler serves it.
func TestPoliciesSayWhoseClientsTheyCount(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, l *testkit.Limiter, operator func() *testkit.Limiter) {
		ctx := t.Context()
		worker := testkit.NewPolicy(t, l, "account", ginlimit.PerMinute(9), ginlimit.WithKey(ginlimit.ByHeader("X")))
		web := testkit.NewPolicy(t, l, "web", ginlimit.PerMinute(9))
		router := testkit.Serve(web.Handler())
		find := func() (account, web ginlimit.PolicyInfo) {
			t.Helper()
			testkit.Must(worker.Allow(ctx, "customer 7"))
			require.Equal(t, 200, testkit.Get(router, "/").Code)
			time.Sleep(4 * time.Minute) // what was published before is gone
			all := testkit.Must(operator().Policies(ctx))
			require.Len(t, all, 2)
			return all[0], all[1]
		}
		account, served := find()
		require.False(t, account.Handler)
		require.Empty(t, account.Key)
		require.True(t, served.Handler)
		require.Equal(t, "ByClientIP", served.Key)
		testkit.Must(web.Allow(ctx, "192.0.2.1"))
		worker.Handler()
		account, served = find()
		require.True(t, account.Handler)
		require.Equal(t, "ByHeader", account.Key)
		require.True(t, served.Handler, "its methods are no other policy")
	}
	testkit.RunInBubble(t, "Redis", func(t *testing.T, b *testkit.Bubble) {
		test(t, testkit.NewOperated(t, b.Redis), func() *testkit.Limiter { return testkit.NewOperated(t, b.Connect(t)) })
	})
	testkit.RunSynctest(t, "in the process", func(t *testing.T) {
		l := testkit.NewLocal(t)
		test(t, l, func() *testkit.Limiter { return l })
	})
}

// TestPoliciesSayWhatTheyKeep: a floor, and a lease with what it is for, also as a default that is in force.
func TestPoliciesSayWhatTheyKeep(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l, ctx := testkit.NewOperated(t, b.Redis, ginlimit.WithLease(1500*time.Microsecond)), t.Context()
		leased := testkit.NewPolicy(t, l, "leased", ginlimit.PerSecond(100))
		slots := testkit.NewPolicy(t, l, "slots", ginlimit.PerSecond(100), ginlimit.InFlight(2))
		for _, p := range []*ginlimit.Policy{leased, slots, testkit.Derive(t, slots, ginlimit.WithFloor(30))} {
			testkit.Must(p.Reserve(ctx, "k", 1)).Release()
		}
		time.Sleep(inForce)
		all := testkit.Must(testkit.NewOperated(t, b.Connect(t)).Policies(ctx))
		require.Len(t, all, 3)
		require.Equal(t, 1500*time.Microsecond, all[0].Lease)
		require.Equal(t, "slots", all[1].Name)
		require.ElementsMatch(t, []int{0, 30}, []int{all[1].Floor, all[2].Floor})
		require.Zero(t, all[1].Lease, "InFlight leaves the default out")
	})
}

// TestTheFloorOfAnotherProcess is respected by an override as in the process that has it.
func TestTheFloorOfAnotherProcess(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l, operator, ctx := testkit.NewOperated(t, b.Redis), testkit.NewOperated(t, b.Connect(t)), t.Context()
		p := testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(100), ginlimit.WithFloor(30))
		leased := testkit.NewPolicy(t, l, "leased", ginlimit.PerSecond(1000), ginlimit.WithLease(time.Minute),
			ginlimit.WithFloor(60))
		for _, p := range []*ginlimit.Policy{p, leased} {
			testkit.Must(p.Allow(ctx, "ann"))
		}
		time.Sleep(inForce)
		low, of := override("ann", ginlimit.PerMinute(30)), override("ann", ginlimit.PerSecond(100))
		of.Policy = "leased"
		for _, o := range []ginlimit.Override{low, of} {
			own, other := l.Override(ctx, o), operator.Override(ctx, o)
			require.ErrorIs(t, own, ginlimit.ErrInvalidArgument)
			require.EqualError(t, other, own.Error())
		}
		require.ErrorContains(t, operator.Override(ctx, of), "WithLease keeps some of its burst")
		require.ErrorContains(t, operator.Override(ctx, low), "WithFloor(30) leaves nothing of 30/m")
		require.NoError(t, operator.Override(ctx, override("ann", ginlimit.PerMinute(31))))
		require.NoError(t, operator.Override(ctx, override("bob", ginlimit.Prohibited())), "which says so")
		lower := testkit.Derive(t, p, ginlimit.WithFloor(0))
		testkit.Must(lower.Allow(ctx, "ann"))
		time.Sleep(inForce)
		require.NoError(t, operator.Override(ctx, low), "something is left for one of the variants")
	})
}

// TestAVersionIsToldByTheLinker of a program that is built without version control.
func TestAVersionIsToldByTheLinker(t *testing.T) {
	t.Parallel()
	const flag = "-ldflags=-X github.com/ginlimit/ginlimit.version=1.4.2"
	out, err := exec.Command("go", "run", "-buildvcs=false", flag, "./testdata/version").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "1.4.2", string(out))
}

// TestAClockThatIsAheadHidesNoPolicy of other processes, neither as it publishes nor as it reads.
func TestAClockThatIsAheadHidesNoPolicy(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		l, ctx := testkit.NewOperated(t, b.Redis), t.Context()
		testkit.Must(testkit.NewPolicy(t, l, "api", ginlimit.PerMinute(3)).Allow(ctx, "ann"))
		time.Sleep(inForce)
		require.NoError(t, l.Close())
		b.Mini.SetTime(time.Now()) // Redis' clock stands still
		time.Sleep(4 * time.Minute)
		ahead := testkit.NewOperated(t, b.Connect(t))
		testkit.Must(testkit.NewPolicy(t, ahead, "fast", ginlimit.PerMinute(3)).Allow(ctx, "ann"))
		all := testkit.Must(ahead.Policies(ctx))
		require.Len(t, all, 2)
		for _, p := range all {
			require.Equal(t, 1, p.Processes)
			require.WithinDuration(t, time.Now(), p.Seen, 2*inForce)
		}
	})
}

// TestPoliciesArePublished: each variant once, with how many processes serve it, until they are gone.
func TestPoliciesArePublished(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		old := func() *testkit.Limiter { return testkit.NewOperated(t, b.Connect(t)) }
		serve := func(l *testkit.Limiter, opts ...ginlimit.PolicyOption) {
			testkit.Must(testkit.NewPolicy(t, l, "api", opts...).Allow(t.Context(), "k"))
		}
		one, two, three := old(), old(), old()
		serve(one, ginlimit.PerMinute(3))
		serve(two, ginlimit.PerMinute(3))
		serve(three, ginlimit.PerMinute(4), ginlimit.WithKey(ginlimit.ByHeader("X")),
			ginlimit.WithHeaders(ginlimit.NoHeaders),
			ginlimit.WithBan(time.Minute, time.Hour), ginlimit.WithFloor(1))
		testkit.Must(testkit.NewPolicy(t, three, "here", unnamedZone()).Allow(t.Context(), "k"))
		testkit.NewPolicy(t, three, "idle", ginlimit.PerMinute(3))
		time.Sleep(inForce)
		reader := testkit.NewOperated(t, b.Redis)
		all := testkit.Must(reader.Policies(t.Context()))
		require.Len(t, all, 3)
		for i := range all {
			require.WithinDuration(t, time.Now(), all[i].Seen, inForce)
			require.Equal(t, "(devel)", all[i].Version, "Go's word for a program without a version, as this is")
			all[i].Seen, all[i].Version = time.Time{}, ""
		}
		require.Equal(t, []ginlimit.PolicyInfo{
			{Name: "api", Limits: []ginlimit.Limit{ginlimit.PerMinute(3)}, Headers: ginlimit.XRateLimit,
				Options: all[0].Options, Processes: 2},
			{Name: "api", Limits: []ginlimit.Limit{ginlimit.PerMinute(4)}, Options: all[1].Options, Floor: 1, Processes: 1},
			{Name: "here", Headers: ginlimit.XRateLimit, Options: all[2].Options, Processes: 1},
		}, all, "a limit of a zone without a name has no text")
		require.Contains(t, all[1].Options, "WithBan")
		require.Contains(t, all[1].Options, "WithFloor")
		require.NotContains(t, all[1].Options, "WithKey")
		require.NoError(t, errors.Join(one.Close(), two.Close()))
		time.Sleep(10 * time.Minute)
		all = testkit.Must(reader.Policies(t.Context()))
		require.Len(t, all, 2)
		require.Equal(t, 1, all[0].Processes)
		require.NoError(t, three.Close())
		time.Sleep(10 * time.Minute)
		all = testkit.Must(reader.Policies(t.Context()))
		require.Empty(t, all)
		require.NotContains(t, strings.Join(b.Mini.Keys(), " "), "policies", "it expires")
		local := testkit.NewLocal(t)
		serve(local, ginlimit.PerDay(9))
		all = testkit.Must(local.Policies(t.Context()))
		require.Len(t, all, 1)
	})
}

// TestWhatOperatorsCannotDoIsAnError: overrides that every process ignores. Policies say so, and name the
// functions that join keys, wherever they were called.
func TestWhatOperatorsCannotDoIsAnError(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		deaf := testkit.NewOperated(t, b.Redis, ginlimit.WithoutOverrides(),
			ginlimit.WithKeySecret([]byte("0123456789abcdef")))
		key := ginlimit.ByAny(ginlimit.ByHeader("X"), ginlimit.ByClientIP)
		for name, key := range map[string]ginlimit.KeyFunc{"api": key,
			"all": ginlimit.ByAll(ginlimit.ByRoute, ginlimit.ByClientIP)} {
			p := testkit.NewPolicy(t, deaf, name, ginlimit.PerMinute(3), ginlimit.WithKey(key))
			p.Handler()
			testkit.Must(p.Allow(t.Context(), "k"))
		}
		time.Sleep(inForce)
		l := testkit.NewOperated(t, b.Connect(t))
		all, err := l.Policies(t.Context())
		require.NoError(t, err)
		require.Equal(t, "ByAll", all[0].Key)
		require.Equal(t, "ByAny", all[1].Key)
		require.Contains(t, all[1].Options, "WithKeySecret")
		err = l.Override(t.Context(), override("ann", ginlimit.PerMinute(9)))
		require.ErrorIs(t, err, ginlimit.ErrInvalidArgument)
		require.ErrorContains(t, err, `all processes of policy "api" have WithoutOverrides`)
		other := testkit.NewPolicy(t, testkit.NewOperated(t, b.Connect(t)), "api", ginlimit.PerMinute(3))
		_, err = other.Allow(t.Context(), "k")
		require.NoError(t, err)
		time.Sleep(inForce)
		require.NoError(t, l.Override(t.Context(), override("ann", ginlimit.PerMinute(9))), "one process heeds it")
	})
}
