package clientkey

import (
	"net/netip"
)

// BitsV4 and BitsV6 are how many bits of an address identify a client. An IPv6 site has at least a
// /64 (RFC 6177), and its hosts can take any new address in it (RFC 8981).
const (
	BitsV4 = 32
	BitsV6 = 64
)

// nat64 is the prefix of IPv4 addresses in IPv6, for IPv6-only clients (RFC 6052, section 2.1).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Canonical returns the address without a zone, or the IPv4 address that it contains: IPv4-mapped,
// or of NAT64.
func Canonical(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if nat64.Contains(addr) {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}

// Address returns the key of an address: its network of v4 or v6 bits, or the address itself if
// these are all its bits.
//
// The address must be [Canonical]: all of IPv4 in IPv6 would share one network. Address
// returns "" for the zero Addr, and for more bits than the address has.
func Address(addr netip.Addr, v4, v6 int) string {
	bits := v6
	if addr.Is4() {
		bits = v4
	}
	prefix, err := addr.Prefix(bits)
	switch {
	case err != nil || !prefix.IsValid():
		return ""
	case prefix.IsSingleIP():
		return prefix.Addr().String()
	}
	return prefix.String()
}

// ReadAddress reports whether text reads as an address or a network, and whether [Address] returns
// it as the key of a client, with [BitsV4] and [BitsV6].
func ReadAddress(text string) (isAddress, isKey bool) {
	for _, b := range []byte(text) { // without the allocations of netip's errors
		switch {
		case b == '%': // a zone follows
		case '.' <= b && b <= ':', 'a' <= b|0x20 && b|0x20 <= 'f':
			continue
		default:
			return false, false
		}
		break
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return true, addr.Is4() // which has no other spelling
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return false, false
	}
	return true, prefix.Bits() == BitsV6 && prefix.Masked().String() == text
}
