package clientkey_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/clientkey"
)

func TestNetworks(t *testing.T) {
	t.Parallel()
	var prefixes []netip.Prefix
	for _, s := range []string{"192.0.2.128/25", "2001:db8::1/48", "::ffff:198.51.100.0/120",
		"64:ff9b::203.0.113.9/120",
		"10.0.0.1/32", "10.0.0.1/32"} {
		prefixes = append(prefixes, netip.MustParsePrefix(s))
	}
	networks, err := clientkey.NewNetworks(prefixes)
	require.NoError(t, err)
	for text, want := range map[string]bool{
		"192.0.2.128": true, "192.0.2.255": true, "192.0.2.127": false, "192.0.3.128": false,
		"2001:db8::ffff": true, "2001:db8:0:ffff::": true, "2001:db8:1::": false,
		"198.51.100.7": true, "198.51.100.255": true, "198.51.99.255": false, "::ffff:198.51.100.7": true,
		"64:ff9b::198.51.100.7": true, "198.51.101.7": false,
		"203.0.113.7": true, "10.0.0.1": true, "10.0.0.2": false, "::": false, "::1": false, "0.0.0.0": false,
	} {
		assert.Equal(t, want, networks.Contains(clientkey.Canonical(netip.MustParseAddr(text))), text)
	}
	require.False(t, networks.Contains(netip.Addr{}))

	everything, err := clientkey.NewNetworks([]netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")})
	require.NoError(t, err)
	none, err := clientkey.NewNetworks(nil)
	require.NoError(t, err)
	for _, text := range []string{"192.0.2.1", "2001:db8::"} {
		require.True(t, everything.Contains(netip.MustParseAddr(text)))
		require.False(t, none.Contains(netip.MustParseAddr(text)))
	}
}

func TestNetworksReturnsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := clientkey.NewNetworks([]netip.Prefix{{}, netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("::ffff:0:0/95"), netip.MustParsePrefix("64:ff9b::/95"),
		netip.MustParsePrefix("64:ff9b::/96")})
	require.EqualError(t, err, "the prefix invalid Prefix is not valid\n"+
		"the prefix ::ffff:0.0.0.0/95 holds IPv4 addresses among others: list the IPv4 networks separately\n"+
		"the prefix 64:ff9b::/95 holds IPv4 addresses among others: list the IPv4 networks separately")
}

// TestManyNetworks looks an address up among 100,000.
func TestManyNetworks(t *testing.T) {
	t.Parallel()
	var prefixes []netip.Prefix
	for i := range 100_000 {
		prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
			32))
	}
	networks, err := clientkey.NewNetworks(prefixes)
	require.NoError(t, err)
	require.True(t, networks.Contains(netip.MustParseAddr("10.1.134.159")))
	require.False(t, networks.Contains(netip.MustParseAddr("10.1.134.160")))
}
