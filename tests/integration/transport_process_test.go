package integration

import (
	"context"
	"log"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// A process that calls a partner as often as it may. It is this test program, started again.

// The environment variables of such a process: the address of Redis, and the partner's URL.
const (
	transportRedis = "GINLIMIT_TRANSPORT_REDIS"
	transportURL   = "GINLIMIT_TRANSPORT_URL"
)

const (
	transportCallers = 8 // of each process
	transportSlots   = 40
	transportRate    = 100
)

// serveTransport is the program of such a process, which is killed in the end.
func serveTransport(addr, url string) {
	// The partner's burst is 100. Calls that leave evenly may arrive in bunches, so the policy has a smaller one.
	client, _, err := through(redis.NewClient(&redis.Options{Addr: addr}), []ginlimit.PolicyOption{
		ginlimit.PerSecond(transportRate).WithBurst(transportRate / 4), ginlimit.InFlight(transportSlots),
	}, testkit.Patient(), ginlimit.WithFailureMode(ginlimit.FailClosed))
	if err != nil {
		log.Fatal(err)
	}
	var all sync.WaitGroup
	for range transportCallers {
		all.Go(func() {
			for {
				if status, err := callPartner(context.Background(), client, url); err != nil || status != 200 {
					log.Print("a call of the partner: ", status, err)
				}
			}
		})
	}
	all.Wait()
}

// startTransportProcess starts such a process. It ends with the test, or when it is killed.
func startTransportProcess(t *testing.T, addr, url string) (kill func()) {
	t.Helper()
	program := testkit.Must(os.Executable())
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), transportRedis+"="+addr, transportURL+"="+url)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return kill
}

// TestTransportsOfProcesses hold a partner's limit for a minute without a 429, and use it, while one of them is killed
// and started again. A killed process keeps no slot.
func TestTransportsOfProcesses(t *testing.T) {
	const lasts, life = time.Minute, 10 * time.Second
	addr := testkit.StartRedis(t)
	p := startPartner(t, ginlimit.PerSecond(transportRate))
	for range 3 {
		startTransportProcess(t, addr, p.url)
	}
	for p.allowed.Load() < transportRate { // they have started, and used up the bursts
		pause(time.Millisecond)
	}
	from, began := p.allowed.Load(), time.Now()
	for time.Since(began) < lasts {
		kill := startTransportProcess(t, addr, p.url)
		pause(min(life, lasts-time.Since(began)))
		kill()
	}
	used := float64(p.allowed.Load()-from) / (transportRate * time.Since(began).Seconds())
	say(t, "%d calls, %.3f of the limit, at most %d at once, %d denied", p.allowed.Load(), used, p.most.Load(), p.denied.Load())
	require.Zero(t, p.denied.Load())
	assert.GreaterOrEqual(t, used, 0.97)
	assert.LessOrEqual(t, p.most.Load(), int64(transportSlots))
}
