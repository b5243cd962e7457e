package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
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
	mu  sync.Mutex
	all []Finding
	ttl []evicting // servers with volatile-ttl
}

func (f *findings) add(server, check, state, found, advice string) {
	if state == Fine {
		advice = ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, Finding{check, server, state, found, advice, nil})
}

// failed adds that something failed.
func (f *findings) failed(server, check, state, what string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, Finding{check, server, state, what + ErrorText(err), Advice(err), err})
}

// Examine looks for what is wrong with Redis, the worst first. It decides twice under each algorithm, by keys of its
// own that live a second, and looks at no more than 100 random keys.
func (o *Operator) Examine(ctx context.Context) []Finding {
	var f findings
	if o.examineServers(ctx, &f) {
		o.tryDecisions(ctx, &f)
		o.examinePolicies(ctx, &f)
	}
	order := map[string]int{Problem: 0, Warning: 1, Fine: 2}
	slices.SortStableFunc(f.all, func(a, b Finding) int { return order[a.State] - order[b.State] })
	return f.all
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
			f.failed("", "connection", Problem, "", err)
			return false
		}
		f.add("", "cluster", Fine, fmt.Sprintf("%d masters", masters), "")
	} else if !o.examineServer(ctx, o.rdb, "", f) {
		return false
	}
	return !slices.ContainsFunc(f.all, func(f Finding) bool { return f.Check == "connection" && f.State == Problem })
}

// examineServer looks at one server, and reports whether it answers.
func (o *Operator) examineServer(ctx context.Context, rdb redis.Cmdable, name string, f *findings) bool {
	var fastest time.Duration
	for i := range 5 {
		began := time.Now()
		err := rdb.Ping(ctx).Err()
		if err != nil && !redis.HasErrorPrefix(err, "NOPERM") {
			f.failed(name, "connection", Problem, "", err)
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
		f.failed(name, "clock", Warning, "", err)
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
	seen, lasting := map[string]bool{}, []string{}
	for range maxSample {
		key, err := rdb.RandomKey(ctx).Result()
		if err == redis.Nil {
			break
		}
		if err != nil {
			f.failed(name, "keys", Warning, "", err)
			return others
		}
		isOurs := strings.HasPrefix(key, o.Prefix+":") || o.Prefix == "" && strings.HasPrefix(key, "{")
		if !isOurs {
			others++
		}
		if !isOurs || seen[key] || strings.Contains(key, "{"+own) {
			continue
		}
		seen[key] = true
		ttl, err := rdb.PTTL(ctx, key).Result()
		if err != nil {
			f.failed(name, "keys", Warning, "", err)
			return others
		}
		if ttl == -1 { // a duration of -1 ns stands for none
			lasting = append(lasting, key)
		}
	}
	found, state := fmt.Sprintf("%d random keys of the prefix, each with an expiry", len(seen)), Fine
	if len(lasting) > 0 {
		found, state = fmt.Sprintf("%d of %d random keys of the prefix have no expiry, such as %s", len(lasting), len(seen),
			lasting[0]), Problem
	}
	f.add(name, "keys", state, found, "somebody else writes keys of this prefix: choose another one, and reset the client")
	return others
}

// own begins the names of the doctor's own policies.
const own = "ginlimit doctor "

var algorithms = []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow}

// tryDecisions decides twice under each algorithm, as the application would: the scripts and the ACL are in it.
func (o *Operator) tryDecisions(ctx context.Context, f *findings) {
	limiter, err := o.limiter()
	if err != nil {
		f.failed("", "decisions", Problem, "", err)
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
			f.failed("", "decisions", Problem, a.String()+": ", err)
		} else {
			f.add("", "decisions", Fine, fmt.Sprintf("%s: scripts run", a), "")
		}
	}
}

// examinePolicies looks at what processes have published, and at the overrides.
func (o *Operator) examinePolicies(ctx context.Context, f *findings) {
	all, err := o.Policies(ctx)
	f.addEviction(all)
	variants := map[string]int{}
	for _, p := range all {
		variants[p.Name]++
	}
	switch {
	case err != nil:
		f.failed("", "policies", Problem, "", err)
	case len(all) == 0:
		f.add("", "policies", Warning, fmt.Sprintf("none under the prefix %s in the last minutes", o.shownPrefix()),
			"check the prefix, and whether the application runs and may publish: see its log")
	case len(all) > len(variants):
		f.add("", "policies", Warning, fmt.Sprintf("%d, of which processes serve %d variants", len(variants), len(all)),
			"wait for the rollout to end, or see ginlimit policies for what differs")
	default:
		f.add("", "policies", Fine, fmt.Sprintf("%d are served", len(variants)), "")
	}
	if overrides, err := o.Overrides(ctx); err != nil {
		f.failed("", "overrides", Problem, "", err)
	} else {
		f.add("", "overrides", Fine, fmt.Sprintf("%d in force", len(overrides)), "")
	}
}
