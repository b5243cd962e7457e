package ginlimit

import (
	"errors"
	"fmt"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// identity is an additional key to count a policy's requests under.
type identity struct {
	prefix string
	key    KeyFunc
	limits *limitSet
}

// newIdentities returns the identities of the policy's configuration, and all errors in them.
func (p *Policy) newIdentities() ([]identity, error) {
	var all []identity
	var errs []error
	names, taken := map[string]bool{p.name: true}, p.limits.fieldNames()
	if p.limits.slots > 0 || p.limitFunc != nil {
		names[p.name+slotsSuffix] = true
	}
	for _, option := range p.config.identities {
		set, err := p.newLimits(option.name, option.name, option.limits, taken, 0)
		if names[option.name] || set.slots > 0 && names[option.name+slotsSuffix] {
			errs = append(errs, invalid("WithIdentity(%q): there is another of that name", option.name))
		}
		names[option.name] = true
		if set.slots > 0 {
			names[option.name+slotsSuffix] = true
		}
		errs = append(errs, p.limiter.names.otherKey(option.name, option.key))
		set.rules.Guard(nil, p.slotsOf(set, taken))
		if set.trial != nil {
			p.trials++
		}
		set.rules.KeepShare()
		taken = append(taken, set.fieldNames()...)
		errs = append(errs, wrapped(fmt.Sprintf("WithIdentity(%q)", option.name), err))
		all = append(all, identity{Key(option.name, ""), option.key, set})
	}
	return all, errors.Join(errs...)
}

// trial is what a set of limits has instead of slots in a [WithDryRun]: slots of its own, so that a
// policy in force of the same name denies nobody because of it.
type trial struct {
	prefix string // of the keys of its slots; no client's key of a policy begins so
	limits *limitSet
}

// newTrial returns the slots of a set in a dry run.
func (p *Policy) newTrial(s *limitSet) *trial {
	t := &trial{prefix: Key(s.name, "dry run", "")}
	t.limits, _ = p.newLimits(s.name, "", []Limit{InFlight(s.slots)}, nil, 0) // it is valid
	t.limits.rules.Guard(nil, t.limits.addSlots(s.name, nil))
	t.limits.rules.KeepShare()
	return t
}

// askOf returns the question about the slots of the client of another question.
func (t *trial) askOf(own *engine.Ask) engine.Ask {
	ask := *own
	ask.Prefix, ask.Set, ask.Scope, ask.Leases = t.prefix, &t.limits.rules, rules.All, false
	ask.Tenant = bucket.Tenant{}
	return ask
}
