package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit"
)

// States of a finding, from good to bad.
const (
	fine    = "ok"
	warning = "warning"
	problem = "problem"
)

// finding is what the doctor says about one thing.
type finding struct {
	Check  string `json:"check"`
	Server string `json:"server,omitempty"`
	State  string `json:"state"`
	Found  string `json:"found"`
	Advice string `json:"do,omitempty"`
}

// findings are what was found so far.
type findings struct {
	mu  sync.Mutex
	all []finding
	ttl []evicting // servers with volatile-ttl
}

func (f *findings) add(server, check, state, found, advice string) {
	if state == fine {
		advice = ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, finding{check, server, state, found, advice})
}

func (t *tool) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Look for what is wrong with Redis, and say what to do",
		Long: "Look for what is wrong with Redis, and say what to do.\n\n" +
			"It decides twice under each algorithm, by keys of its own that live a second, and looks at no more than\n" +
			"100 random keys.",
		Args: cobra.NoArgs,
		RunE: t.with(func(ctx context.Context, rdb redis.UniversalClient, _ []string) error {
			var f findings
			if t.examine(ctx, rdb, &f) {
				t.tryDecisions(ctx, rdb, &f)
				t.examinePolicies(ctx, rdb, &f)
			}
			order := map[string]int{problem: 0, warning: 1, fine: 2}
			slices.SortStableFunc(f.all, func(a, b finding) int { return order[a.State] - order[b.State] })
			err := t.print(f.all, func(w io.Writer) { printFindings(w, f.all) })
			if err == nil && f.all[0].State == problem {
				err = errProblem
			}
			return err
		}),
	}
}

func printFindings(w io.Writer, all []finding) {
	row(w, "STATE", "CHECK", "FOUND")
	for _, f := range all {
		found := f.Found
		if f.Server != "" {
			found = f.Server + ": " + found
		}
		row(w, f.State, f.Check, found)
		if f.Advice != "" {
			row(w, "", "", "-> "+f.Advice)
		}
	}
}

// examine looks at each server, and reports whether decisions can be tried.
func (t *tool) examine(ctx context.Context, rdb redis.UniversalClient, f *findings) bool {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		masters := 0
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			f.mu.Lock()
			masters++
			f.mu.Unlock()
			t.examineServer(ctx, node, node.Options().Addr, f)
			return nil
		})
		if err != nil {
			f.add("", "connection", problem, errorText(err), adviceOf(err))
			return false
		}
		f.add("", "cluster", fine, fmt.Sprintf("%d masters", masters), "")
	} else if !t.examineServer(ctx, rdb, "", f) {
		return false
	}
	return !slices.ContainsFunc(f.all, func(f finding) bool { return f.Check == "connection" && f.State == problem })
}

// examineServer looks at one server, and reports whether it answers.
func (t *tool) examineServer(ctx context.Context, rdb redis.Cmdable, name string, f *findings) bool {
	var fastest time.Duration
	for i := range 5 {
		began := time.Now()
		err := rdb.Ping(ctx).Err()
		if err != nil && !redis.HasErrorPrefix(err, "NOPERM") {
			f.add(name, "connection", problem, errorText(err), adviceOf(err))
			return false
		}
		if took := time.Since(began); i == 0 || took < fastest {
			fastest = took
		}
	}
	state := fine
	if fastest > ginlimit.DefaultTimeout/2 {
		state = warning
	}
	f.add(name, "connection", state, fmt.Sprintf("answers in %s", fastest.Round(10*time.Microsecond)),
		"a decision waits for 50 ms by default: move Redis closer, or raise WithTimeout")
	others := t.sampleKeys(ctx, rdb, name, f)
	t.examineInfo(ctx, rdb, name, others, f)
	t.examineClock(ctx, rdb, name, f)
	return true
}

// examineClock compares clocks: calendar quotas go by the application's.
func (t *tool) examineClock(ctx context.Context, rdb redis.Cmdable, name string, f *findings) {
	began := time.Now()
	theirs, err := rdb.Time(ctx).Result()
	if err != nil {
		f.add(name, "clock", warning, errorText(err), adviceOf(err))
		return
	}
	off := theirs.Sub(began.Add(time.Since(began) / 2)).Abs()
	state := fine
	if off > time.Second {
		state = warning
	}
	f.add(name, "clock", state, fmt.Sprintf("%s off this machine's", off.Round(time.Millisecond)),
		"synchronize the clocks: overrides and calendar quotas end by them")
}

const maxSample = 100

// sampleKeys looks at random keys: each of ginlimit's has an expiry. It returns how many are of others.
func (t *tool) sampleKeys(ctx context.Context, rdb redis.Cmdable, name string, f *findings) (others int) {
	seen, lasting := map[string]bool{}, []string{}
	for range maxSample {
		key, err := rdb.RandomKey(ctx).Result()
		if err == redis.Nil {
			break
		}
		if err != nil {
			f.add(name, "keys", warning, errorText(err), adviceOf(err))
			return others
		}
		isOurs := strings.HasPrefix(key, t.prefix+":") || t.prefix == "" && strings.HasPrefix(key, "{")
		if !isOurs {
			others++
		}
		if !isOurs || seen[key] || strings.Contains(key, "{"+own) {
			continue
		}
		seen[key] = true
		ttl, err := rdb.PTTL(ctx, key).Result()
		if err != nil {
			f.add(name, "keys", warning, errorText(err), adviceOf(err))
			return others
		}
		if ttl == -1 { // a duration of -1 ns stands for none
			lasting = append(lasting, key)
		}
	}
	found, state := fmt.Sprintf("%d random keys of the prefix, each with an expiry", len(seen)), fine
	if len(lasting) > 0 {
		found, state = fmt.Sprintf("%d of %d random keys of the prefix have no expiry, such as %s", len(lasting), len(seen),
			lasting[0]), problem
	}
	f.add(name, "keys", state, found, "somebody else writes keys of this prefix: choose another one, and reset the client")
	return others
}

// own begins the names of the doctor's own policies.
const own = "ginlimit doctor "

var algorithms = []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow}

// tryDecisions decides twice under each algorithm, as the application would: the scripts and the ACL are in it.
func (t *tool) tryDecisions(ctx context.Context, rdb redis.UniversalClient, f *findings) {
	limiter, err := t.limiter(rdb)
	if err != nil {
		f.add("", "decisions", problem, errorText(err), "")
		return
	}
	defer limiter.Close()
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
			f.add("", "decisions", problem, fmt.Sprintf("%s: %s", a, errorText(err)), adviceOf(err))
		} else {
			f.add("", "decisions", fine, fmt.Sprintf("%s: scripts run", a), "")
		}
	}
}

// examinePolicies looks at what processes have published, and at the overrides.
func (t *tool) examinePolicies(ctx context.Context, rdb redis.UniversalClient, f *findings) {
	limiter, err := t.limiter(rdb)
	if err != nil {
		return // tryDecisions has said so
	}
	defer limiter.Close()
	all, err := served(ctx, limiter)
	f.addEviction(all)
	variants := map[string]int{}
	for _, p := range all {
		variants[p.Name]++
	}
	switch {
	case err != nil:
		f.add("", "policies", problem, errorText(err), adviceOf(err))
	case len(all) == 0:
		f.add("", "policies", warning, fmt.Sprintf("none under the prefix %s in the last minutes", t.shownPrefix()),
			"check --prefix, and whether the application runs and may publish: see its log")
	case len(all) > len(variants):
		f.add("", "policies", warning, fmt.Sprintf("%d, of which processes serve %d variants", len(variants), len(all)),
			"wait for the rollout to end, or see ginlimit policies for what differs")
	default:
		f.add("", "policies", fine, fmt.Sprintf("%d are served", len(variants)), "")
	}
	if overrides, err := limiter.Overrides(ctx); err != nil {
		f.add("", "overrides", problem, errorText(err), adviceOf(err))
	} else {
		f.add("", "overrides", fine, fmt.Sprintf("%d in force", len(overrides)), "")
	}
}
