package clientkey

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Networks is a set of networks. The zero Networks is empty.
type Networks struct {
	lengths  []int // of the prefixes
	prefixes map[netip.Prefix]struct{}
}

// NewNetworks returns the set of prefixes, each in the form of [Canonical] addresses, and all
// errors in them.
func NewNetworks(prefixes []netip.Prefix) (Networks, error) {
	set := Networks{prefixes: map[netip.Prefix]struct{}{}}
	var errs []error
	for _, p := range prefixes {
		switch wraps := p.Addr().Is4In6() || nat64.Contains(p.Addr()); {
		case !p.IsValid():
			errs = append(errs, fmt.Errorf("the prefix %s is not valid", p))
			continue
		case wraps && p.Bits() < 96:
			errs = append(errs, fmt.Errorf(
				"the prefix %s holds IPv4 addresses among others: list the IPv4 networks separately", p))
			continue
		case wraps:
			p = netip.PrefixFrom(Canonical(p.Addr()), p.Bits()-96)
		}
		set.prefixes[p.Masked()] = struct{}{}
		if !slices.Contains(set.lengths, p.Bits()) {
			set.lengths = append(set.lengths, p.Bits())
		}
	}
	return set, errors.Join(errs...)
}

// IsEmpty reports whether there is no network.
func (n *Networks) IsEmpty() bool { return len(n.lengths) == 0 }

// Contains reports whether a [Canonical] address is in one of the networks.
func (n *Networks) Contains(addr netip.Addr) bool {
	return slices.ContainsFunc(n.lengths, func(bits int) bool {
		p, _ := addr.Prefix(min(bits, addr.BitLen())) // an invalid one is in no set
		_, ok := n.prefixes[p]
		return ok
	})
}
