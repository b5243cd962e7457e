package ginlimit

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/gin-gonic/gin"
)

// clientPrefixV6 is how many bits of an IPv6 address tell clients apart: a site is handed a /64 at
// least (RFC 6177), and its hosts take new addresses from it at will (RFC 8981).
const clientPrefixV6 = 64

// nat64 is the prefix behind which IPv6-only clients reach IPv4, and the other way round (RFC 6052, section 2.1).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// ByClientIP counts for the client's address, of IPv6 for its /64.
//
// The address is what [gin.Context.ClientIP] says, so it is as trustworthy as the engine's
// SetTrustedProxies and TrustedPlatform make it; by default Gin believes X-Forwarded-For from anyone, and the
// limiter then warns once. An IPv4-mapped IPv6 address and one of NAT64 (64:ff9b::/96) count as the IPv4 address.
// An address that cannot be read, as that of a unix socket, is an error that wraps [ErrNoKey].
func ByClientIP(c *gin.Context) (string, error) { return byAddress(c, 32, clientPrefixV6) }

// ByClientIPPrefix is [ByClientIP] for networks of so many bits, of IPv4 and of IPv6.
//
// ByClientIPPrefix(32, 64) is ByClientIP. It panics unless 1 ≤ v4 ≤ 32 and 1 ≤ v6 ≤ 128.
func ByClientIPPrefix(v4, v6 int) KeyFunc {
	if v4 < 1 || v4 > 32 || v6 < 1 || v6 > 128 {
		panic(fmt.Errorf("ginlimit: ByClientIPPrefix(%d, %d): want 1 to 32 and 1 to 128 bits", v4, v6))
	}
	return func(c *gin.Context) (string, error) { return byAddress(c, v4, v6) }
}

func byAddress(c *gin.Context, v4, v6 int) (string, error) {
	addr, err := clientAddress(c)
	if err != nil {
		return "", err
	}
	bits := v6
	if addr.Is4() {
		bits = v4
	}
	if bits == addr.BitLen() {
		return addr.String(), nil
	}
	prefix, err := addr.Prefix(bits)
	return prefix.String(), err
}

// clientAddress returns the client's address in the one form that all its spellings have.
func clientAddress(c *gin.Context) (netip.Addr, error) {
	if probe, ok := c.Get(addressProbeKey{}); ok {
		probe.(*addressProbe).used.Store(true)
	}
	address := c.ClientIP()
	if address == "" { // Gin does not read a zone, as in [fe80::1%eth0]:80
		if remote, err := netip.ParseAddrPort(c.Request.RemoteAddr); err == nil {
			return canonical(remote.Addr()), nil
		}
	}
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return addr, fmt.Errorf("%w: the client address %.64q cannot be read", ErrNoKey, address)
	}
	return canonical(addr), nil
}

// canonical returns the address without a zone, and that of IPv4 if it only wraps one. It comes before any cut, or
// all of IPv4 would share ::/64.
func canonical(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if nat64.Contains(addr) {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}

// addressProbe tells that somebody asked for the client's address.
type addressProbe struct{ used atomic.Bool }

type addressProbeKey struct{}

// believesStrangers reports whether Gin would take a stranger's word for whom a request comes from.
func believesStrangers(c *gin.Context) bool {
	const stranger, claimed = "192.0.2.1:1", "198.51.100.1" // of documentation (RFC 5737)
	forged := c.Copy()
	forged.Request = &http.Request{RemoteAddr: stranger, Header: http.Header{
		"X-Forwarded-For": {claimed}, "X-Real-Ip": {claimed},
	}}
	return forged.ClientIP() == claimed
}

// addressSet is a set of networks.
type addressSet struct {
	v4, v6   []int // the lengths of its prefixes
	prefixes map[netip.Prefix]struct{}
}

// newAddressSet returns the set of prefixes, in the form of [canonical], and all faults.
func newAddressSet(prefixes []netip.Prefix) (*addressSet, error) {
	set := &addressSet{prefixes: map[netip.Prefix]struct{}{}}
	var faults []error
	for _, p := range prefixes {
		switch wraps := p.Addr().Is4In6() || nat64.Contains(p.Addr()); {
		case !p.IsValid():
			faults = append(faults, fmt.Errorf("the prefix %s is not valid", p))
			continue
		case wraps && p.Bits() < 96:
			faults = append(faults, fmt.Errorf("the prefix %s holds IPv4 addresses among others: list those of IPv4 apart", p))
			continue
		case wraps:
			p = netip.PrefixFrom(canonical(p.Addr()), p.Bits()-96)
		}
		set.prefixes[p.Masked()] = struct{}{}
		lengths := &set.v6
		if p.Addr().Is4() {
			lengths = &set.v4
		}
		if !slices.Contains(*lengths, p.Bits()) {
			*lengths = append(*lengths, p.Bits())
		}
	}
	return set, errors.Join(faults...)
}

// contains reports whether an address is in one of the networks.
func (s *addressSet) contains(addr netip.Addr) bool {
	lengths := s.v6
	if addr.Is4() {
		lengths = s.v4
	}
	for _, bits := range lengths {
		if p, err := addr.Prefix(bits); err == nil {
			if _, ok := s.prefixes[p]; ok {
				return true
			}
		}
	}
	return false
}
