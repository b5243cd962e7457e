package clientkey_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/clientkey"
)

func TestKeysOfAddresses(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, address string
		v4, v6        int
		want          string
	}{
		{"IPv4", "203.0.113.7", 32, 64, "203.0.113.7"},
		{"IPv4-mapped is the IPv4 address", "::ffff:203.0.113.7", 32, 64, "203.0.113.7"},
		{"IPv4-mapped in hex", "::ffff:cb00:7107", 32, 64, "203.0.113.7"},
		{"IPv4-mapped with a zone", "::ffff:203.0.113.7%eth0", 32, 64, "203.0.113.7"},
		{"IPv4 behind NAT64", "64:ff9b::203.0.113.7", 32, 64, "203.0.113.7"},
		{"IPv4 behind NAT64 with a zone", "64:ff9b::203.0.113.7%eth0", 32, 64, "203.0.113.7"},
		{"a neighbour of NAT64", "64:ff9b:1::203.0.113.7", 32, 64, "64:ff9b:1::/64"},
		{"IPv6 is its /64", "2001:db8:1:2:3:4:5:6", 32, 64, "2001:db8:1:2::/64"},
		{"IPv6 in capitals", "2001:DB8:1:2::", 32, 64, "2001:db8:1:2::/64"},
		{"a zone is no part of it", "fe80::1%eth0", 32, 64, "fe80::/64"},
		{"loopback", "::1", 32, 64, "::/64"},
		{"a /24", "203.0.113.7", 24, 56, "203.0.113.0/24"},
		{"a /56", "2001:db8:1:2ff:1::", 24, 56, "2001:db8:1:200::/56"},
		{"a whole address", "2001:db8::7%eth0", 32, 128, "2001:db8::7"},
		{"a whole address beside a network of IPv4", "2001:db8::7", 24, 128, "2001:db8::7"},
		{"one bit", "203.0.113.7", 1, 1, "128.0.0.0/1"},
		{"bits that there are not", "203.0.113.7", 33, 64, ""},
	} {
		addr := clientkey.Canonical(netip.MustParseAddr(row.address))
		assert.Equal(t, row.want, clientkey.Address(addr, row.v4, row.v6), row.name)
	}
	require.Empty(t, clientkey.Address(netip.Addr{}, clientkey.BitsV4, clientkey.BitsV6))
	require.Equal(t, netip.Addr{}, clientkey.Canonical(netip.Addr{}))
}

func TestReadAddress(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]bool{
		"203.0.113.7":          {true, true},
		"2001:db8::/64":        {true, true},
		"64:ff9b::/64":         {true, true},
		"2001:db8::1":          {true, false},
		"2001:db8::":           {true, false},
		"2001:DB8::1":          {true, false},
		"2001:DB8::/64":        {true, false},
		"2001:db8:0:0::/64":    {true, false},
		"2001:db8::1/64":       {true, false},
		"2001:db8::/48":        {true, false},
		"203.0.113.0/24":       {true, false},
		"::ffff:203.0.113.7":   {true, false},
		"64:ff9b::203.0.113.7": {true, false},
		"fe80::1%eth0":         {true, false},
		"203.0.113.7:443":      {false, false},
		"ada":                  {false, false},
		"":                     {false, false},
		"a/b":                  {false, false},
	} {
		isAddress, isKey := clientkey.ReadAddress(text)
		assert.Equal(t, want, [2]bool{isAddress, isKey}, text)
	}
}

// FuzzAddress wants the key of each address to be read as one, and equal keys for all spellings of
// a client's addresses.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"203.0.113.7", "::ffff:203.0.113.7", "2001:db8::1", "fe80::1%eth0",
		"64:ff9b::1.2.3.4", "::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return
		}
		addr = clientkey.Canonical(addr)
		require.Equal(t, addr, clientkey.Canonical(addr))
		key := clientkey.Address(addr, clientkey.BitsV4, clientkey.BitsV6)
		isAddress, isKey := clientkey.ReadAddress(key)
		require.True(t, isAddress && isKey, "%q is %q", text, key)
		if isAddress, isKey = clientkey.ReadAddress(text); isKey != (text == key) || !isAddress {
			t.Fatalf("%q is %q", text, key)
		}
		if addr.Is4() {
			for _, prefix := range []string{"::ffff:", "64:ff9b::"} {
				require.Equal(t, addr, clientkey.Canonical(netip.MustParseAddr(prefix+key)))
			}
			return
		}
		b := addr.As16()
		b[8], b[15] = ^b[8], ^b[15]
		require.Equal(t, key, clientkey.Address(netip.AddrFrom16(b), clientkey.BitsV4, clientkey.BitsV6), "of one /64")
	})
}
