//go:build integration

package fair_test

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// askerEnv is set in a process that asks for tenants: the address of Redis, the seconds, and each
// tenant's name, weight and tries a second; a negative number of tries comes at random.
const askerEnv = "GINLIMIT_TEST_ASKER"

// TestAsksForTenants is no test, but the process that sharesOnRedis starts.
func TestAsksForTenants(t *testing.T) {
	args := strings.Fields(os.Getenv(askerEnv))
	if len(args) == 0 {
		return // it is only for that
	}
	rdb := redis.NewClient(&redis.Options{Addr: args[0]})
	limiter := testkit.Must(ginlimit.NewLimiter(rdb, ginlimit.WithFailureMode(ginlimit.FailClosed), testkit.Patient()))
	policy := testkit.Must(limiter.Policy("fair", ginlimit.PerSecond(200).WithBurst(64), ginlimit.WithShares(noTenant)))
	seconds := testkit.Must(strconv.ParseFloat(args[1], 64))
	var callers sync.WaitGroup
	start := time.Now()
	for ; len(args) >= 5; args = args[3:] {
		name := args[2]
		weight, _ := strconv.Atoi(args[3])
		perSecond, _ := strconv.ParseFloat(args[4], 64)
		p := policy.Share(name, weight)
		callers.Go(func() {
			tries, denied, got := 0, 0, 0
			at := 0.0
			for {
				if gap := 1 / math.Abs(perSecond); perSecond > 0 {
					at += gap
				} else {
					at += rand.ExpFloat64() * gap
				}
				if at > seconds {
					break
				}
				time.Sleep(time.Until(start.Add(time.Duration(at * float64(time.Second)))))
				r, err := p.Allow(t.Context(), "upstream")
				if err != nil {
					fmt.Println("error", err)
					return
				}
				if tries++; !r.Allowed {
					denied++
				} else if at > 2 { // by then nothing is left of what one took alone
					got++
				}
			}
			fmt.Println("tenant", name, tries, denied, got)
		})
	}
	callers.Wait()
}

// asked is what a tenant got.
type asked struct{ tries, denied, got int }

// sharesOnRedis has two processes ask a server of their own.
func sharesOnRedis(t *testing.T, seconds int, first, second string) map[string]asked {
	addr := testkit.StartRedis(t)
	all := map[string]asked{}
	var mu sync.Mutex
	var processes sync.WaitGroup
	for _, tenants := range []string{first, second} {
		program := testkit.Must(os.Executable())
		process := exec.Command(program, "-test.run", "^TestAsksForTenants$")
		process.Env = append(os.Environ(), askerEnv+"="+fmt.Sprint(addr, " ", seconds, " ", tenants))
		out := testkit.Must(process.StdoutPipe())
		require.NoError(t, process.Start())
		processes.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				var name string
				var a asked
				if n, _ := fmt.Sscanf(lines.Text(), "tenant %s %d %d %d", &name, &a.tries, &a.denied, &a.got); n == 4 {
					mu.Lock()
					was := all[name]
					all[name] = asked{was.tries + a.tries, was.denied + a.denied, was.got + a.got}
					mu.Unlock()
				}
			}
			_ = process.Wait()
		})
	}
	processes.Wait()
	t.Log(all)
	return all
}

// TestTwoProcessesShareByWeightWhateverTheZeal: a tenant that tries fifty times as often gets as much,
// and one of weight 3 three times as much.
func TestTwoProcessesShareByWeightWhateverTheZeal(t *testing.T) {
	testkit.Nightly(t, "a process that gets no core does not ask, and so its tenant gets less")
	t.Parallel()
	testkit.Run(t, "zeal", func(t *testing.T) {
		all := sharesOnRedis(t, 12, "zealous 1 5000", "calm 1 130")
		require.InEpsilon(t, 1000, all["zealous"].got, 0.05)
		require.InEpsilon(t, 1000, all["calm"].got, 0.05)
	})
	testkit.Run(t, "weights", func(t *testing.T) {
		all := sharesOnRedis(t, 12, "light 1 2000", "heavy 3 2000")
		require.InEpsilon(t, 500, all["light"].got, 0.05)
		require.InEpsilon(t, 1500, all["heavy"].got, 0.05)
	})
}

// TestLightTenantOnRedisIsNotDenied beside two that try as often as they can.
func TestLightTenantOnRedisIsNotDenied(t *testing.T) {
	testkit.Nightly(t, "a tenant that gets no core asks too little, and then all at once")
	t.Parallel()
	all := sharesOnRedis(t, 16, "greedy1 1 2000 light 1 -33", "greedy2 1 500")
	require.Greater(t, all["light"].tries, 400)
	require.Zero(t, all["light"].denied)
}
