package operate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
)

const (
	seeMaxmemory = "see \"maxmemory\" in docs/operations.md"
	evictsFirst  = "buckets are evicted before keys that live longer, and start full: " +
		"set noeviction, in a Redis of their own; " + seeMaxmemory
)

// memory judges what happens when the server is full. Of the random keys, others are of other applications.
func (i info) memory(name string, others, db int, f *findings) {
	policy, most, used := i["maxmemory_policy"], i.number("maxmemory"), i.number("used_memory")
	found := fmt.Sprintf("%s, %d of %d MiB used", policy, used>>20, most>>20)
	elsewhere := i.keysElsewhere(db)
	switch {
	case policy == "":
		f.add(name, "memory", Warning, "the server does not say its maxmemory-policy", "look it up; "+seeMaxmemory)
	case most == 0:
		f.add(name, "memory", Warning, policy+", no maxmemory", "set maxmemory, or the system may end Redis")
	case used*10 > most*9 && policy == "noeviction":
		f.add(name, "memory", Problem, found, "give Redis more memory; "+seeMaxmemory)
	case policy == "volatile-ttl" && others > 0:
		found += fmt.Sprintf("; %d of %d random keys are of others", others, maxSample)
		f.add(name, "memory", Warning, found, evictsFirst)
	case policy == "volatile-ttl" && elsewhere > 0:
		f.add(name, "memory", Warning, fmt.Sprintf("%s; %d keys in other databases", found, elsewhere), evictsFirst)
	case policy == "volatile-ttl":
		f.mu.Lock()
		f.ttl = append(f.ttl, evicting{name, found})
		f.mu.Unlock()
	case policy != "noeviction":
		f.add(name, "memory", Warning, found, "evicted clients start with a full bucket: set noeviction; "+seeMaxmemory)
	default:
		f.add(name, "memory", Fine, found, "")
	}
	if n := i.number("evicted_keys"); n > 0 {
		f.add(name, "evictions", Warning, fmt.Sprintf("%d keys since the start", n), seeMaxmemory)
	}
}

// keysElsewhere returns how many keys other databases of the server have: it evicts them by the same policy.
func (i info) keysElsewhere(db int) (sum int) {
	for field, value := range i {
		var number, keys int
		if _, err := fmt.Sscanf(field, "db%d", &number); err != nil || number == db {
			continue
		}
		if _, err := fmt.Sscanf(value, "keys=%d", &keys); err == nil {
			sum += keys
		}
	}
	return sum
}

// evicting is a server with volatile-ttl that has no keys of others.
type evicting struct{ server, found string }

// addEviction judges servers with volatile-ttl by the policies that are served. A client who comes once has a key for
// as long as a token takes: it is evicted after the buckets of policies whose tokens take much less, however empty.
func (f *findings) addEviction(served []ginlimit.PolicyInfo) {
	type token struct {
		policy string
		takes  time.Duration
	}
	var tokens []token
	why := ""
	for _, p := range served {
		for _, l := range p.Limits {
			switch {
			case l.InFlight > 0 || l.Algorithm != ginlimit.TokenBucket || l.Calendar != ginlimit.Calendar{}:
				why = fmt.Sprintf("; policy %s has other keys than token buckets", p.Name)
			case l.Rate > 0:
				tokens = append(tokens, token{p.Name, l.Period / time.Duration(l.Rate)})
			}
		}
		if slices.Contains(p.Options, "WithBan") {
			why = fmt.Sprintf("; policy %s has other keys than token buckets", p.Name)
		}
	}
	if why == "" && len(tokens) > 0 {
		order := func(a, b token) int { return cmp.Compare(a.takes, b.takes) }
		if a, b := slices.MinFunc(tokens, order), slices.MaxFunc(tokens, order); b.takes > 2*a.takes {
			why = fmt.Sprintf("; a token of policy %s takes %s, of %s %s", a.policy, Span(a.takes),
				b.policy, Span(b.takes))
		}
	}
	for _, e := range f.ttl {
		state := Fine
		if why != "" {
			state = Warning
		}
		f.add(e.server, "memory", state, e.found+why, evictsFirst)
	}
}
