package ginlimit

import (
	"errors"
	"fmt"
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
		set, err := p.newLimits(option.name, option.limits, taken, 0)
		if names[option.name] || set.slots > 0 && names[option.name+slotsSuffix] {
			errs = append(errs, invalid("WithIdentity(%q): there is another of that name", option.name))
		}
		names[option.name] = true
		if set.slots > 0 {
			names[option.name+slotsSuffix] = true
		}
		errs = append(errs, p.limiter.names.otherKey(option.name, option.key))
		set.rules.Guard(nil, p.slotsOf(set, taken))
		set.rules.KeepShare()
		taken = append(taken, set.fieldNames()...)
		errs = append(errs, wrapped(fmt.Sprintf("WithIdentity(%q)", option.name), err))
		all = append(all, identity{p.prefixOf(option.name), option.key, set})
	}
	return all, errors.Join(errs...)
}
