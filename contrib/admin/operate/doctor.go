package operate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

// States of a finding, from good to bad.
const (
	Fine    = "ok"
	Warning = "warning"
	Problem = "problem"
)

// Finding is what the doctor says about one thing.
type Finding struct {
	Check  string `json:"check"`
	Server string `json:"server,omitempty"`
	State  string `json:"state"`
	Found  string `json:"found"`
	Advice string `json:"do,omitempty"`
	Err    error  `json:"-"` // that was found, or nil
}

// findings are what was found so far.
type findings struct {
	mu     sync.Mutex
	all    []Finding
	ttl    []evicting      // servers with volatile-ttl
	silent map[string]bool // servers that have not answered yet
	ended  bool            // what is found now comes too late
}

func (f *findings) add(server, check, state, found, advice string) {
	if state == Fine {
		advice = ""
	}
	f.append(Finding{check, server, state, found, advice, nil})
}

// failed adds that something failed. What fails after the time is over was not answered in time: end says so.
func (f *findings) failed(ctx context.Context, server, check, state, what string, err error) {
	if overtime(ctx) == nil {
		f.append(Finding{check, server, state, what + ErrorText(err), Advice(err), err})
	}
}

func (f *findings) append(of Finding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended {
		f.all = append(f.all, of)
	}
}

// ask notes that a server is asked for the first time, or has answered or failed.
func (f *findings) ask(server string, silent bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.silent == nil {
		f.silent = map[string]bool{}
	}
	f.silent[server] = silent
}

// isLost reports that decisions cannot be tried, as a server does not answer.
func (f *findings) isLost() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.all, func(f Finding) bool { return f.Check == "connection" && f.State == Problem })
}

// end returns all findings, or those until an error ended the examination. A server that has answered is slow, not
// dead.
func (f *findings) end(err error) []Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	all := slices.Clone(f.all)
	if len(f.silent) == 0 && len(all) == 0 {
		f.silent = map[string]bool{"": true} // as a cluster of which the masters are not known
	}
	lost := false
	for _, server := range slices.Sorted(maps.Keys(f.silent)) {
		if err != nil && f.silent[server] {
			lost = true
			all = append(all, Finding{"connection", server, Problem, ErrorText(err), Advice(err), err})
		}
	}
	if err != nil && !lost {
		all = append(all, Finding{Check: "checks", State: Warning, Found: "not all were made in the time for them",
			Advice: "look again; ginlimit doctor has more time"})
	}
	order := map[string]int{Problem: 0, Warning: 1, Fine: 2}
	slices.SortStableFunc(all, func(a, b Finding) int { return order[a.State] - order[b.State] })
	return all
}

// overtime returns an error if the time of ctx is over, at once when a command fails by its deadline.
func overtime(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// Examine looks for what is wrong with Redis, the worst first. It decides twice under each algorithm, by keys of its
// own that live a second, and looks at no more than 100 random keys. When ctx ends, it returns what was found.
func (o *Operator) Examine(ctx context.Context) []Finding {
	f, of := &findings{}, *o
	of.limiters = slices.Clone(o.limiters) // it may go on after Close
	_, err := goroutine.Bounded(ctx, 0, func() (struct{}, error) {
		if of.examineServers(ctx, f) {
			of.tryDecisions(ctx, f)
			of.examinePolicies(ctx, f)
		}
		return struct{}{}, overtime(ctx)
	})
	return f.end(err)
}

// examineServers looks at each server, and reports whether decisions can be tried.
func (o *Operator) examineServers(ctx context.Context, f *findings) bool {
	if cluster, ok := o.rdb.(*redis.ClusterClient); ok {
		masters := 0
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			f.mu.Lock()
			masters++
			f.mu.Unlock()
			o.examineServer(ctx, node, node.Options().Addr, f)
			return nil
		})
		if err != nil {
			f.failed(ctx, "", "connection", Problem, "", err)
			return false
		}
		f.add("", "cluster", Fine, fmt.Sprintf("%d masters", masters), "")
	} else if !o.examineServer(ctx, o.rdb, "", f) {
		return false
	}
	return !f.isLost()
}

// examineServer looks at one server, and reports whether it answers.
func (o *Operator) examineServer(ctx context.Context, rdb redis.Cmdable, name string, f *findings) bool {
	var fastest time.Duration
	f.ask(name, true)
	for i := range 5 {
		began := time.Now()
		err := rdb.Ping(ctx).Err()
		if err == nil || overtime(ctx) == nil {
			f.ask(name, false)
		}
		if err != nil && !redis.HasErrorPrefix(err, "NOPERM") {
			f.failed(ctx, name, "connection", Problem, "", err)
			return false
		}
		if took := time.Since(began); i == 0 || took < fastest {
			fastest = took
		}
	}
	state := Fine
	if fastest > ginlimit.DefaultTimeout/2 {
		state = Warning
	}
	f.add(name, "connection", state, fmt.Sprintf("answers in %s", fastest.Round(10*time.Microsecond)),
		"a decision waits for 50 ms by default: move Redis closer, or raise WithTimeout")
	others := o.sampleKeys(ctx, rdb, name, f)
	o.examineInfo(ctx, rdb, name, others, f)
	o.examineClock(ctx, rdb, name, f)
	return true
}

// examineClock compares clocks: calendar quotas go by the application's.
func (o *Operator) examineClock(ctx context.Context, rdb redis.Cmdable, name string, f *findings) {
	began := time.Now()
	theirs, err := rdb.Time(ctx).Result()
	if err != nil {
		f.failed(ctx, name, "clock", Warning, "", err)
		return
	}
	off := theirs.Sub(began.Add(time.Since(began) / 2)).Abs()
	state := Fine
	if off > time.Second {
		state = Warning
	}
	f.add(name, "clock", state, fmt.Sprintf("%s off this machine's", off.Round(time.Millisecond)),
		"synchronize the clocks: overrides and calendar quotas end by them")
}

const maxSample = 100

// sampleKeys looks at random keys: each of ginlimit's has an expiry. It returns how many are of others.
func (o *Operator) sampleKeys(ctx context.Context, rdb redis.Cmdable, name string, f *findings) (others int) {
	keys, ttls, others, err := o.sample(ctx, rdb)
	if err != nil {
		f.failed(ctx, name, "keys", Warning, "", err)
		return others
	}
	lasting := []string{}
	for i, key := range keys {
		if ttls[i].Val() == -1 { // a duration of -1 ns stands for none
			lasting = append(lasting, key)
		}
	}
	found, state := fmt.Sprintf("%d random keys of the prefix, each with an expiry", len(keys)), Fine
	if len(lasting) > 0 {
		found, state = fmt.Sprintf("%d of %d random keys of the prefix have no expiry, such as %s", len(lasting), len(keys),
			lasting[0]), Problem
	}
	f.add(name, "keys", state, found, "somebody else writes keys of this prefix: choose another one, and reset the client")
	return others
}

// sample returns random keys of the prefix with their expiry, and how many keys of others there were beside them. It
// asks in two round trips, as Redis may be far away.
func (o *Operator) sample(ctx context.Context, rdb redis.Cmdable) (
	keys []string, ttls []*redis.DurationCmd, others int, err error,
) {
	cmds, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range maxSample {
			p.RandomKey(ctx)
		}
		return nil
	})
	if err != nil && err != redis.Nil { // there are no keys
		return nil, nil, 0, err
	}
	for _, cmd := range cmds {
		key := cmd.(*redis.StringCmd).Val()
		isOurs := strings.HasPrefix(key, o.Prefix+":") || o.Prefix == "" && strings.HasPrefix(key, "{")
		if !isOurs && key != "" {
			others++
		}
		if isOurs && !slices.Contains(keys, key) && !strings.Contains(key, "{"+own) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, nil, others, nil
	}
	_, err = rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range keys {
			ttls = append(ttls, p.PTTL(ctx, key))
		}
		return nil
	})
	return keys, ttls, others, err
}

// own begins the names of the doctor's own policies.
const own = "ginlimit doctor "

var algorithms = []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow}

// tryDecisions decides twice under each algorithm, as the application would: the scripts and the ACL are in it.
func (o *Operator) tryDecisions(ctx context.Context, f *findings) {
	limiter, err := o.limiter()
	if err != nil {
		f.failed(ctx, "", "decisions", Problem, "", err)
		return
	}
	defer limiter.Close() // before it publishes these policies
	for _, a := range algorithms {
		policy, err := limiter.Policy(own+a.String(), ginlimit.PerSecond(2).WithAlgorithm(a))
		for range 2 {
			if err == nil {
				_, err = policy.Allow(ctx, "doctor")
			}
		}
		if err == nil {
			err = policy.Reset(ctx, "doctor")
		}
		if err != nil {
			f.failed(ctx, "", "decisions", Problem, a.String()+": ", err)
		} else {
			f.add("", "decisions", Fine, fmt.Sprintf("%s: scripts run", a), "")
		}
	}
}

// maxNamed is how many policies a sentence names.
const maxNamed = 3

// examinePolicies looks at what processes have published, and at the overrides.
func (o *Operator) examinePolicies(ctx context.Context, f *findings) {
	all, err := o.Policies(ctx)
	f.addEviction(all)
	names := map[string]bool{}
	for _, p := range all {
		names[p.Name] = true
	}
	differing := Differing(all)
	switch {
	case err != nil:
		f.failed(ctx, "", "policies", Problem, "", err)
	case len(all) == 0:
		f.add("", "policies", Warning, fmt.Sprintf("none under the prefix %s in the last minutes", o.shownPrefix()),
			"check the prefix, and whether the application runs and may publish: see its log")
	case len(differing) > 0:
		some := strings.Join(differing[:min(len(differing), maxNamed)], ", ")
		f.add("", "policies", Warning, fmt.Sprintf("%d of %d have different limits or options in different processes, "+
			"such as %s", len(differing), len(names), some),
			"wait for the rollout to end: a process that has gone is seen for three minutes; see ginlimit policies")
	default:
		f.add("", "policies", Fine, fmt.Sprintf("%d are served", len(names)), "")
	}
	overrides, err := o.Overrides(ctx)
	if err == nil {
		_, err = o.Read(overrides...)
	}
	if err != nil {
		f.failed(ctx, "", "overrides", Problem, "", err)
	} else {
		f.add("", "overrides", Fine, fmt.Sprintf("%d in force", len(overrides)), "")
	}
}
