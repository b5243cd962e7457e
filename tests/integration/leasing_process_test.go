package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// A process whose callers take tokens of one key under a lease. It is this test program, started
// again. It appends each admission to a file at once, as it may be killed.

// The environment variables of such a process: the address of Redis, and the file.
const (
	leasingRedis = "GINLIMIT_LEASING_REDIS"
	leasingLog   = "GINLIMIT_LEASING_LOG"
)

// leasingDone is what such a process did: how often it asked, and how often a lease decided.
type leasingDone struct{ Calls, Leased int }

// serveLeasing is the program of such a process.
func serveLeasing(addr, path string) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ginlimit.NewLimiter(redis.NewClient(&redis.Options{Addr: addr}), testkit.Patient(),
		ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithDenyCache(0),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		log.Fatal(err)
	}
	policy, err := limiter.Policy("failing", failingLimit, ginlimit.WithLease(failingLife))
	if err != nil {
		log.Fatal(err)
	}
	var mu sync.Mutex
	var done leasingDone
	var callers sync.WaitGroup
	for range failingCallers {
		callers.Go(func() {
			its := takeLeased(policy, file)
			mu.Lock()
			defer mu.Unlock()
			done.Calls += its.Calls
			done.Leased += its.Leased
		})
	}
	callers.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(done); err != nil {
		log.Fatal(err)
	}
}

// takeLeased asks for one token after another for failingTime. Errors are part of the tests.
func takeLeased(policy *ginlimit.Policy, file *os.File) (done leasingDone) {
	ticker := time.NewTicker(failingPace)
	defer ticker.Stop()
	for end := time.Now().Add(failingTime); ; done.Calls++ {
		from := time.Now()
		if from.After(end) {
			return done
		}
		result, _ := policy.Allow(context.Background(), "hot")
		if result.Granted > 0 {
			if _, err := fmt.Fprintln(file, from.UnixNano(), time.Now().UnixNano(), result.Granted); err != nil {
				log.Fatal(err)
			}
		}
		if result.Source == ginlimit.FromLease {
			done.Leased++
		}
		<-ticker.C
	}
}

// leasingProcess is such a process.
type leasingProcess struct {
	cmd *exec.Cmd
	log string
	out bytes.Buffer
}

// startLeasingProcess starts a process, which ends with the test at the latest.
func startLeasingProcess(t *testing.T, addr string) *leasingProcess {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // if it hangs
	p := &leasingProcess{
		cmd: exec.CommandContext(ctx, program), log: filepath.Join(t.TempDir(), "admissions"),
	}
	p.cmd.Env = append(os.Environ(), leasingRedis+"="+addr, leasingLog+"="+p.log)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, os.Stderr
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may be dead
		_ = p.cmd.Wait()
		cancel()
	})
	return p
}

// wait waits for the end of the process, and returns what it did.
func (p *leasingProcess) wait(t *testing.T) (done leasingDone) {
	t.Helper()
	require.NoError(t, p.cmd.Wait())
	require.NoError(t, json.Unmarshal(p.out.Bytes(), &done))
	return done
}

// admissions reads what the process has appended to its file. The last line of one that was killed
// may not be complete.
func (p *leasingProcess) admissions(t *testing.T, began time.Time) (all []admission) {
	t.Helper()
	file, err := os.Open(p.log)
	require.NoError(t, err)
	defer file.Close()
	for {
		var from, to int64
		var tokens int
		_, err := fmt.Fscanln(file, &from, &to, &tokens)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, admission{time.Duration(from - began.UnixNano()), time.Duration(to - began.UnixNano()), tokens})
	}
}
