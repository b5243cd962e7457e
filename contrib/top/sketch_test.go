package top

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// stream makes clients, one after another.
type stream func() string

// streams are the ways in which clients may come, by name.
func streams(random *rand.Rand) map[string]stream {
	zipf := func(s float64) stream {
		z := rand.NewZipf(random, s, 1, 1<<20)
		return func() string { return fmt.Sprint("z", z.Uint64()) }
	}
	n := 0
	return map[string]stream{
		"zipf 1.01": zipf(1.01), "zipf 1.5": zipf(1.5), "zipf 3": zipf(3),
		"every client once": func() string { n++; return fmt.Sprint("new", n) },
		"one client, and each time another": func() string {
			if n++; n%2 == 0 {
				return "same"
			}
			return fmt.Sprint("new", n)
		},
		"one more than there are counters, in turn": func() string { n++; return fmt.Sprint(n % (counters + 1)) },
		"a client that comes late": func() string {
			if n++; n > 3000 && random.IntN(20) == 0 {
				return "late"
			}
			return fmt.Sprint("new", random.IntN(n))
		},
		"a few clients": func() string { return fmt.Sprint("few", random.IntN(7)) },
	}
}

// exact has the numbers of each client, by kind.
type exact [kinds]map[string]int64

// requireBounds checks a summary against the exact numbers.
func (e exact) requireBounds(t *testing.T, s summary) {
	t.Helper()
	var denied int64
	for _, n := range e[denials] {
		denied += n
	}
	require.Equal(t, denied, s.outcomes[ginlimit.OutcomeDenied])
	for kind, exact := range e {
		requireBounds(t, s.of[kind], exact)
	}
}

func requireBounds(t *testing.T, s ranking, exact map[string]int64) {
	t.Helper()
	var all, sum int64
	for _, n := range exact {
		all += n
	}
	require.LessOrEqual(t, len(s.clients), counters)
	listed := map[string]bool{}
	for _, c := range s.clients {
		key := c.text[1:]
		require.False(t, listed[key], "twice: %s", key)
		listed[key] = true
		require.LessOrEqual(t, exact[key], c.count, key)
		require.LessOrEqual(t, c.count-c.err, exact[key], key)
		sum += c.count
	}
	require.LessOrEqual(t, sum, all)
	for key, n := range exact {
		if !listed[key] {
			require.LessOrEqual(t, n, s.rest, key)
			require.LessOrEqual(t, n*counters, all, "%s has %d of %d and is missing", key, n, all)
		}
	}
}

// newPolicy returns a policy whose clients a test counts.
func newPolicy(name string) *policy { return &policy{name: name, prefix: name + "|"} }

// newExact returns numbers of nothing.
func newExact() exact { return exact{{}, {}, {}} }

// count counts a denial of a client, or a few tokens or many, in a shard of the policy.
func (e exact) count(p *policy, key string, random *rand.Rand, shards int) {
	kind, n, s := kind(random.IntN(int(kinds))), int64(1), &p.shards[random.IntN(shards)]
	if kind == denials {
		s.outcomes[ginlimit.OutcomeDenied]++
	} else if n += random.Int64N(20); random.IntN(50) == 0 {
		n *= 1000
	}
	if s.sketches[kind] == nil {
		s.sketches[kind] = &sketch{}
	}
	s.sketches[kind].add(key, false, n)
	e[kind][key] += n
}

// TestSummariesKeepTheirBounds: of one process with several shards, and of several processes in any order.
func TestSummariesKeepTheirBounds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 1))
		for name, next := range streams(random) {
			exact := newExact()
			var parts []summary
			for range 1 + random.IntN(5) {
				p := newPolicy("p")
				for range random.IntN(8000) {
					exact.count(p, next(), random, 1+random.IntN(maxShards))
				}
				parts = append(parts, p.take(r0.keys))
			}
			for len(parts) > 1 {
				i := random.IntN(len(parts) - 1)
				parts[i] = parts[i].merge(parts[i+1])
				parts = append(parts[:i+1], parts[i+2:]...)
			}
			t.Log(seed, name)
			exact.requireBounds(t, parts[0])
		}
	}
}

var r0 Reporter // without a secret

// TestTextOfASummary: it is read as it was written, and another text is an error.
func TestTextOfASummary(t *testing.T) {
	t.Parallel()
	s := summary{[kinds]ranking{{[]client{{"=a b", 7, 2}, {"#x", 1 << 60, 0}}, 5}, {nil, 6}, {[]client{{"=c", 8, 0}}, 7}},
		outcomes{1, 2, 3, 4}}
	text := "1 1 2 3 4 5 6 7\nd 7 2 =a b\nd 1152921504606846976 0 #x\nr 8 0 =c\n"
	require.Equal(t, text, s.text())
	read := testkit.Must(parseSummary(text))
	require.Equal(t, s, read)
	const line = "1 1 2 3 4 5 6 7\n"
	for _, text := range []string{
		"", "2 1 2 3 4 5 6 7\n", "1 1 2 3 4 5 6\n", "1 1 2 3 4 5 6 7 8\n", "1 x 2 3 4 5 6 7\n", "1 1 2 3 -4 5 6 7\n",
		"1 1 2 3 4 5 6 -7\n", line + "d 7 2\n", line + "d 7 2 \n", line + "d 7 2 a\n", line + "d x 2 =a\n", line + "\n",
		line + "7 2 =a b\n", line + "x 7 2 =a\n", line + "dc 7 2 =a\n", line + " 7 2 =a\n",
	} {
		_, err := parseSummary(text)
		require.ErrorIs(t, err, errFormat, text)
	}
}

// TestKeysOfPoliciesDoNotMeet: not with each other, and not with the limiter's, which have a brace after the prefix.
func TestKeysOfPoliciesDoNotMeet(t *testing.T) {
	t.Parallel()
	require.Equal(t, "ginlimit:denied:{login}", redisKey("ginlimit", "login"))
	require.Equal(t, "denied:{login}", redisKey("", "login"))
	require.Equal(t, `a:denied:{x\|y}`, redisKey("a", "x|y"))
	require.Regexp(t, `^a:denied:\{#[\w-]{43}\}$`, redisKey("a", "x}y"))
	require.Regexp(t, `^a:denied:\{#[\w-]{43}\}$`, redisKey("a", strings.Repeat("x", 65)))
}

func BenchmarkObserve(b *testing.B) {
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 1)), 1.1, 1, 1<<20)
	for name, next := range map[string]func(i int) string{
		"zipf":      func(int) string { return fmt.Sprint("203.0.113.", z.Uint64()) },
		"long keys": func(i int) string { return strings.Repeat("x", maxKey) + fmt.Sprint(i%50) },
	} {
		b.Run(name, func(b *testing.B) {
			rdb := redis.NewClient(&redis.Options{Addr: testkit.RefusedAddr(b), MaxRetries: -1})
			defer rdb.Close()
			reporter, keys := start(b, rdb), make([]string, 1<<12)
			for i := range keys {
				keys[i] = next(i)
			}
			for i := 0; b.Loop(); i++ {
				deny(reporter, "login", keys[i%len(keys)])
			}
		})
	}
}
