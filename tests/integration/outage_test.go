package integration

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Every fault of faults_test.go, under the load of 64 callers for each of the three policies. What must hold is
// asserted always; how fast it was is written into a table, and asserted with it:
//
//	cd integration && go test -race -run TestFaults -faults faults.out .

var faultsTable = flag.String("faults", "",
	"the file to write the table of faults to, which is measured one fault at a time")

const (
	outageCallers  = 64
	outagePace     = 25 * time.Millisecond // between two decisions of a caller
	outageReplicas = 4
	// settleTime is how long it may take until Redis is given up for lost, on a busy machine.
	settleTime = time.Second
)

// hotLimit is the limit of the one key that all callers ask for, at a hundred times its rate.
var hotLimit = ginlimit.PerMinute(60)

// site is a Redis with a fault that has not begun.
type site struct {
	rdb   redis.UniversalClient
	fail  func()
	mend  func() // it returns when Redis can be reached again
	lasts time.Duration
	// degrades tells which decisions Redis does not make while the fault lasts.
	degrades kindOfKey
	// bursts is how often a bucket may start full, as Redis loses it.
	bursts int
	key    string // whose buckets are on the server that fails, if there are several
}

// kindOfKey is what a caller asks for, in turn.
type kindOfKey uint8

const (
	noKey    kindOfKey = iota
	hotKey             // the same key for all, over its limit
	freshKey           // a key that nobody has asked for yet
	someKeys           // those of one node of a cluster, say
)

// seen is one decision of a caller.
type seen struct {
	key  kindOfKey
	at   time.Duration // since the start
	took time.Duration
	r    ginlimit.Result
	err  error
}

// outage is what happened in one run.
type outage struct {
	seen    map[ginlimit.FailureMode][]seen
	failed  time.Duration // since the start
	settled time.Duration // Redis is given up for lost by then
	mending time.Duration
	mended  time.Duration
	ended   time.Duration
	back    time.Duration // from mended on, until every limiter decided in Redis
	log     string
}

var policies = []ginlimit.FailureMode{ginlimit.FailLocal, ginlimit.FailOpen, ginlimit.FailClosed}

func TestFaults(t *testing.T) {
	serial := *faultsTable != ""
	rows := make([]string, len(faults))
	for i, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if !serial {
				t.Parallel()
			}
			say(t, "begins")
			s := f.start(t)
			o := s.run(t)
			s.judge(t, o)
			rows[i] = fmt.Sprintf("| %s | %s", f.name, s.row(t, o))
			say(t, "%s", rows[i])
			assert.Less(t, percentile(o.tooks(), 99), 2*time.Second, "also on a busy machine")
			assert.Less(t, o.back, 10*time.Second, "also on a busy machine")
			if serial {
				assert.LessOrEqual(t, percentile(o.tooks(), 99), ginlimit.DefaultTimeout+20*time.Millisecond)
				assert.LessOrEqual(t, o.back, time.Second)
			}
		})
	}
	if serial && !t.Failed() {
		text := faultsText + strings.Join(rows, "\n") + "\n"
		require.NoError(t, os.WriteFile(*faultsTable, []byte(text), 0o644))
	}
}

// run puts the site under load, has it fail and mends it.
func (s *site) run(t *testing.T) outage {
	t.Helper()
	var log testkit.Buffer
	limiters := map[ginlimit.FailureMode]*testkit.Limiter{}
	var all sync.WaitGroup
	o := outage{seen: map[ginlimit.FailureMode][]seen{}}
	timeout := ginlimit.WithTimeout(ginlimit.DefaultTimeout)
	switch { // what is late on a busy machine is not the fault's
	case *faultsTable != "":
	case s.degrades == noKey:
		timeout = testkit.Patient()
	default:
		timeout = ginlimit.WithTimeout(3 * ginlimit.DefaultTimeout)
	}
	label := pprof.Labels("test", t.Name())
	pprof.Do(t.Context(), label, func(ctx context.Context) { // goroutines inherit it
		for _, policy := range policies {
			limiter := testkit.Must(ginlimit.NewLimiter(s.rdb, ginlimit.WithFailureMode(policy),
				ginlimit.WithPrefix(policy.String()), timeout,
				ginlimit.WithReplicas(outageReplicas), ginlimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
			limiters[policy] = testkit.Wrap(limiter, ginlimit.TokenBucket)
			require.True(t, testkit.BecomesTrue(ctx.Done(), inRedis(limiters[policy])), policy)
		}
		start, end := time.Now(), make(chan struct{})
		var mu sync.Mutex
		for policy, limiter := range limiters {
			for caller := range outageCallers {
				all.Go(func() {
					own := call(limiter, caller, start, end)
					mu.Lock()
					defer mu.Unlock()
					o.seen[policy] = append(o.seen[policy], own...)
				})
			}
		}
		pause(outagePace * 20)
		o.failed = time.Since(start)
		s.fail() // which takes long on a busy machine
		o.settled = time.Since(start) + settleTime
		pause(s.lasts)
		o.mending = time.Since(start)
		s.mend()
		mended := time.Now()
		o.mended = mended.Sub(start)
		for _, policy := range policies {
			assert.True(t, testkit.BecomesTrue(ctx.Done(), inRedis(limiters[policy])), policy)
		}
		o.back = time.Since(mended)
		pause(outagePace * 20)
		close(end)
		all.Wait()
		o.ended = time.Since(start)
		for _, limiter := range limiters {
			assert.NoError(t, limiter.Close())
		}
	})
	o.log = log.String()
	return o
}

// pause lets the callers go on for a while.
func pause(d time.Duration) { <-time.After(d) }

// probeKeys makes keys that nobody has asked for.
var probeKeys atomic.Int64

// inRedis reports, asked again and again, whether a limiter has decided in Redis on each of some keys, of every node.
func inRedis(l *testkit.Limiter) func() bool {
	const keys = 12
	var done [keys]atomic.Bool
	first := probeKeys.Add(1)
	return func() bool {
		var all sync.WaitGroup
		var missing atomic.Int64
		for i := range done {
			if done[i].Load() {
				continue
			}
			all.Go(func() {
				r, err := l.Allow(context.Background(), fmt.Sprintf("new %d, %d", i, first), hotLimit)
				if err == nil && r.Source == ginlimit.FromRedis {
					done[i].Store(true)
				} else {
					missing.Add(1)
				}
			})
		}
		all.Wait()
		return missing.Load() == 0
	}
}

// call asks at a steady pace until the end, in turn for a fresh key and for the hot one.
func call(l *testkit.Limiter, caller int, start time.Time, end <-chan struct{}) []seen {
	var all []seen
	ticker := time.NewTicker(outagePace)
	defer ticker.Stop()
	for i := 0; ; i++ {
		s := seen{key: hotKey}
		key := "hot"
		if i%2 == 0 {
			s.key, key = freshKey, fmt.Sprintf("caller %d, call %d", caller, i)
		}
		began := time.Now()
		s.at = began.Sub(start)
		s.r, s.err = l.Allow(context.Background(), key, hotLimit)
		s.took = time.Since(began)
		all = append(all, s)
		select {
		case <-ticker.C:
		case <-end:
			return all
		}
	}
}

// degraded reports whether Redis did not make the decision.
func (d seen) degraded() bool {
	return d.err != nil || d.r.Source == ginlimit.FromLocal || d.r.Source == ginlimit.FromOpen
}

// judge asserts what must hold in every run, however slow the machine is.
func (s *site) judge(t *testing.T, o outage) {
	t.Helper()
	degraded, decisions := 0, 0
	for _, policy := range policies {
		inRedis, locally := 0, 0
		decisions += len(o.seen[policy])
		for _, d := range o.seen[policy] {
			switch {
			case d.err != nil:
				assert.Equal(t, ginlimit.FailClosed, policy)
				assert.ErrorIs(t, d.err, ginlimit.ErrUnavailable)
			case d.r.Source == ginlimit.FromLocal:
				assert.Equal(t, ginlimit.FailLocal, policy)
				assert.True(t, d.r.Allowed || d.key == hotKey)
				if d.r.Allowed && d.key == hotKey {
					locally++
				}
			case d.r.Source == ginlimit.FromOpen:
				assert.Equal(t, ginlimit.FailOpen, policy)
				assert.True(t, d.r.Allowed)
			case d.key == hotKey && d.r.Allowed:
				inRedis++
			case d.key == freshKey:
				assert.Equal(t, hotLimit.Rate-1, d.r.Remaining)
			}
			if d.degraded() {
				degraded++
			}
			settled := d.at > o.settled && d.at+d.took < o.mending
			if settled && s.degrades == d.key {
				assert.True(t, d.err != nil || d.r.Source != ginlimit.FromRedis,
					"at %s of %s to %s: %+v", d.at, o.failed, o.mending, d)
			}
		}
		assert.LessOrEqual(t, inRedis, s.mostInRedis(o), "admitted by Redis, %s", policy)
		if policy == ginlimit.FailLocal {
			assert.LessOrEqual(t, locally, mostLocally(o), "admitted locally")
		}
	}
	if *faultsTable == "" || s.degrades != noKey {
		assert.Equal(t, s.degrades != noKey, degraded > 0, "decisions that Redis did not make: %d", degraded)
	}
	assert.LessOrEqual(t, strings.Count(o.log, "\n"), max(40, decisions/100), o.log) // a busy machine's servers flap
	for _, secret := range []string{"hot", "caller ", outagePassword} {
		assert.NotContains(t, o.log, secret)
	}
	assert.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
		return testkit.GoroutinesLeft(t) == 0
	}), "goroutines left")
}

// mostInRedis is burst + rate × time, for each time the bucket was lost.
func (s *site) mostInRedis(o outage) int {
	return s.bursts*hotLimit.Rate + int(o.ended.Seconds()*float64(hotLimit.Rate)/60) + 1
}

func mostLocally(o outage) int {
	return hotLimit.Rate/outageReplicas + int(o.ended.Seconds()*float64(hotLimit.Rate/outageReplicas)/60) + 1
}

// tooks are how long all decisions took, sorted.
func (o outage) tooks() []time.Duration {
	var all []time.Duration
	for _, policy := range policies {
		for _, d := range o.seen[policy] {
			all = append(all, d.took)
		}
	}
	slices.Sort(all)
	return all
}

func percentile(sorted []time.Duration, p int) time.Duration { return sorted[(len(sorted)-1)*p/100] }

// row is the line of the table: how long decisions took, how many of those during the fault Redis did not make,
// when it did again, and how many were admitted of how many that may be.
func (s *site) row(t *testing.T, o outage) string {
	during, degraded, inRedis, locally := 0, 0, 0, 0
	for policy, all := range o.seen {
		for _, d := range all {
			isDegraded := d.degraded()
			if d.at > o.failed && d.at < o.mended {
				during++
				if isDegraded {
					degraded++
				}
			}
			if policy == ginlimit.FailLocal && d.key == hotKey && d.r.Allowed {
				if isDegraded {
					locally++
				} else {
					inRedis++
				}
			}
		}
	}
	tooks := o.tooks()
	return fmt.Sprintf("%s | %s | %.0f %% | %s | %d of %d | %d of %d |", inMS(percentile(tooks, 99)),
		inMS(tooks[len(tooks)-1]),
		100*float64(degraded)/float64(max(1, during)), inMS(o.back), inRedis, s.mostInRedis(o), locally, mostLocally(o))
}

func inMS(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

const faultsText = `degraded: the share of decisions during the fault that Redis did not make.
back: from when Redis can be reached until the last of the three limiters decides there again.
admitted: on the key that is over its limit, by Redis and by the process (FailLocal, a quarter of the limit), and
the most that is allowed.

| fault | p99 | longest | degraded | back | admitted by Redis | by the process |
| --- | --- | --- | --- | --- | --- | --- |
`
