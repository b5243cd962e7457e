package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

const (
	transportFailsAfter = time.Second
	transportFailsFor   = 3 * time.Second
	transportReplicas   = 2
)

// transportCalls are what callers saw.
type transportCalls struct {
	mu       sync.Mutex
	answered map[string]int // statuses by path
	failed   map[string]error
}

// TestTransportsWhileRedisFails go on as their failure mode says: each call is answered, or returns an error and was
// not sent.
func TestTransportsWhileRedisFails(t *testing.T) {
	t.Parallel()
	frozen := func(_ *testing.T, process *os.Process, _ *redis.Client) error { return process.Signal(syscall.SIGSTOP) }
	goesOn := func(process *os.Process) error { return process.Signal(syscall.SIGCONT) }
	emptied := func(t *testing.T, _ *os.Process, rdb *redis.Client) error { return rdb.FlushAll(t.Context()).Err() }
	nothing := func(*os.Process) error { return nil }
	const rate, burst = 100, 20
	soon := ginlimit.WithTimeout(ginlimit.DefaultTimeout)
	whole := int(transportFailsFor.Seconds()) * rate
	for name, row := range map[string]struct {
		mode    ginlimit.FailureMode
		timeout ginlimit.LimiterOption
		fail    func(*testing.T, *os.Process, *redis.Client) error
		mend    func(*os.Process) error
		most    int // calls that the partner serves while Redis is away; without errors at least one
		errs    bool
	}{
		"frozen, closed": {ginlimit.FailClosed, soon, frozen, goesOn, 0, true},
		"frozen, local":  {ginlimit.FailLocal, soon, frozen, goesOn, whole + burst, false},
		"frozen, open":   {ginlimit.FailOpen, soon, frozen, goesOn, math.MaxInt, false},
		"emptied":        {ginlimit.FailClosed, testkit.Patient(), emptied, nothing, whole + 2*burst, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, process := testkit.StartRedisProcess(t)
			t.Cleanup(func() { _ = goesOn(process) })
			p := startPartner(t, ginlimit.PerSecond(rate))
			if row.mode == ginlimit.FailOpen { // it limits nobody: what a 429 does is not the question
				p = startPartner(t, ginlimit.Unlimited())
			}
			seen := transportCalls{answered: map[string]int{}, failed: map[string]error{}}
			var all sync.WaitGroup
			var stops atomic.Bool
			for i := range transportReplicas {
				client := transportClient(t, testkit.Connect(t, addr), []ginlimit.PolicyOption{ginlimit.PerSecond(rate).WithBurst(burst)},
					ginlimit.WithFailureMode(row.mode), ginlimit.WithReplicas(transportReplicas), row.timeout, quietly)
				for caller := range transportCallers {
					all.Go(func() {
						for n := 0; !stops.Load(); n++ {
							path := fmt.Sprintf("/%d/%d/%d", i, caller, n)
							ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
							status, err := callPartner(ctx, client, p.url+path)
							cancel()
							seen.note(path, status, err)
							pause(5 * time.Millisecond)
						}
					})
				}
			}
			pause(transportFailsAfter)
			require.NoError(t, row.fail(t, process, testkit.Connect(t, addr)))
			from := time.Now().Add(settleTime)
			pause(settleTime + transportFailsFor)
			served := p.between(from, from.Add(transportFailsFor))
			require.NoError(t, row.mend(process))
			mended := p.allowed.Load()
			require.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool { return p.allowed.Load() > mended+rate/2 }))
			stops.Store(true)
			all.Wait()
			say(t, "%d calls, %d of them in the outage, %d errors, %d denied", p.allowed.Load(), served, len(seen.failed), p.denied.Load())
			assert.LessOrEqual(t, served, row.most)
			assert.Equal(t, row.errs, served == 0)
			assert.Equal(t, row.errs, len(seen.failed) > 0)
			assert.Zero(t, p.denied.Load())
			seen.judge(t, p)
		})
	}
}

// note keeps what came of a call.
func (c *transportCalls) note(path string, status int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed[path] = err
	} else {
		c.answered[path] = status
	}
}

// judge asserts that what was served was answered, once, and that no call with an error was sent.
func (c *transportCalls) judge(t *testing.T, p *apiPartner) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.Len(t, p.served, len(c.answered))
	for path, times := range p.served {
		assert.Len(t, times, 1)
		assert.Equal(t, 200, c.answered[path])
	}
	for _, err := range c.failed {
		assert.True(t, errors.Is(err, ginlimit.ErrUnavailable), err)
	}
}
