package clientkey_test

import (
	"bytes"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/clientkey"
)

func TestJoinTellsTuplesApart(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "login|203.0.113.7", clientkey.Join("login", "203.0.113.7"))
	assert.Equal(t, `a\|b|c\\`, clientkey.Join("a|b", `c\`))
	long := strings.Repeat("a|", 513)
	hash := clientkey.Join(long)[1:]
	require.Regexp(t, `^#[0-9a-f]{64}$`, hash)
	tuples := [][]string{{"a-b", "c"}, {"a", "b-c"}, {"a", "b", "c"}, {"a", "b|c"}, {"a|b", "c"}, {"a|b|c"}, {"abc"},
		{"a", ""}, {"", "a"}, {"a"}, {"a", "", ""}, {`a\`, "b"}, {`a\|b`}, {`a`, `\b`},
		{`a\\`, "b"}, {"|"}, {`\`}, {""}, {"", ""},
		{"a", long}, {"a", long + "b"}, {"a", long, ""}, {"a", "", long}, {long, "a"}, {long + "a"}, {long}, {long, long},
		{"a|b", long}, {"a", "b", long}, {hash}, {`\` + hash}, {"a", hash}, {"a", `\` + hash}, {`a|\` + hash}, {hash, "a"}}
	seen := map[string][]string{}
	for _, tuple := range tuples {
		key := clientkey.Join(tuple[0], tuple[1:]...)
		assert.NotContains(t, seen, key, "%q and %q", tuple, seen[key])
		name, part, ok := clientkey.Split(key)
		if assert.Equal(t, len(tuple) == 2 && len(tuple[0]) <= 1024 && len(tuple[1]) <= 1024, ok, tuple); ok {
			assert.Equal(t, tuple, []string{name, part})
		}
		seen[key] = tuple
	}
}

// TestLongPartsMakeNoLongKeys, however often they are joined: each Join would double a part of separators.
func TestLongPartsMakeNoLongKeys(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a|"+strings.Repeat("b", 1024), clientkey.Join("a", strings.Repeat("b", 1024)))
	key := strings.Repeat("|", 900_000)
	for range 12 {
		key = clientkey.Join("a", key)
		require.LessOrEqual(t, len(key), 2+2*1024)
	}
	text := clientkey.Text{}.Append(nil, "login|", strings.Repeat("|", 900_000))
	require.Less(t, cap(text), 1024, "buffers of keys are kept")
	require.Regexp(t, `^#[A-Za-z0-9_-]{43}$`, string(text), "as any key of more than 64 bytes")
}

// slotText is a key as it stands in a hash tag, without a secret.
func slotText(key string) string { return string(clientkey.Text{}.Append(nil, "", key)) }

func TestPlainKeysStandAsTheyAre(t *testing.T) {
	t.Parallel()
	const hash = `^#[A-Za-z0-9_-]{43}$`
	for _, key := range []string{"a", "login|203.0.113.7", " ~", "a#", strings.Repeat("a", 64), ""} {
		assert.Equal(t, key, slotText(key))
	}
	for _, key := range []string{"{", "}", "#", "#a", "é", "\x1f", "\x7f", "\n", strings.Repeat("a", 65)} {
		assert.Regexp(t, hash, slotText(key), "%q", key)
	}
	require.Equal(t, "#_Tvy0nKJtV0Rd5ORFHNOtz09s_-C_1NtgLqQanqnVu4", slotText("h|a{b}"))
}

// TestPrefixOfAPolicy: the name and the key of its client are one text, however they are passed.
func TestPrefixOfAPolicy(t *testing.T) {
	t.Parallel()
	for _, text := range []clientkey.Text{{}, clientkey.NewText([]byte("secret"))} {
		for _, name := range []string{"login", `a|\b`, "{a}", strings.Repeat("name|", 400)} {
			for _, client := range []string{"203.0.113.7", "a|b", `a\b`, `|\`, "{a}", "é", strings.Repeat("long", 40),
				"#", strings.Repeat("longest|", 400)} {
				want := text.Append(nil, "", clientkey.Join(name, client))
				got := text.Append([]byte("kept{"), clientkey.Join(name, ""), client)
				assert.Equal(t, "kept{"+string(want), string(got), "%q, %q", name, client)
			}
		}
	}
}

func TestSecretHidesEveryKey(t *testing.T) {
	t.Parallel()
	text, same := clientkey.NewText([]byte("s")), clientkey.NewText([]byte("s"))
	other, empty := clientkey.NewText([]byte("t")), clientkey.NewText([]byte{})
	seen := map[string]string{}
	for _, key := range []string{"a", "b", "#a", strings.Repeat("a", 65), ""} {
		got := string(text.Append(nil, "", key))
		require.Regexp(t, `^#[A-Za-z0-9_-]{43}$`, got)
		require.Equal(t, got, string(same.Append(nil, "", key)))
		require.NotEqual(t, got, slotText(key))
		require.NotEqual(t, got, string(other.Append(nil, "", key)))
		require.NotEqual(t, got, string(empty.Append(nil, "", key)))
		require.NotContains(t, seen, got, "%q and %q", key, seen[got])
		seen[got] = key
	}
	require.Equal(t, clientkey.Text{}, clientkey.NewText(nil))
}

// TestHashesAreWrittenAsTheyAre, under any prefix.
func TestHashesAreWrittenAsTheyAre(t *testing.T) {
	t.Parallel()
	hashes := clientkey.Hashes()
	for _, text := range []clientkey.Text{{}, clientkey.NewText([]byte("secret"))} {
		for _, client := range []string{strings.Repeat("long", 40), "é", "{a}", "a|b\n"} {
			hash := string(text.Append(nil, `a\|b|`, client))
			require.True(t, clientkey.IsHash(hash))
			for _, prefix := range []string{"", `a\|b|`, "other|dry run|"} {
				require.Equal(t, "kept{"+hash, string(hashes.Append([]byte("kept{"), prefix, hash)))
			}
		}
	}
	hash := slotText("é")
	for _, no := range []string{"", "#", "a", hash[1:], hash[:43], hash + "A", hash[:43] + "\n", "\n" + hash, "#" + hash,
		hash[:43] + "B", strings.Replace(hash, "#", "=", 1)} {
		require.False(t, clientkey.IsHash(no), "%q", no)
		hashes.Append(nil, "", no) // nobody asks for it, but it does not panic
	}
}

// TestTextIsForManyGoroutines, which share its hashes.
func TestTextIsForManyGoroutines(t *testing.T) {
	t.Parallel()
	text := clientkey.NewText([]byte("secret"))
	var all sync.WaitGroup
	for _, key := range []string{"a", "b", "c", "d"} {
		want := text.Append(nil, "", key)
		all.Go(func() {
			for range 200 {
				assert.Equal(t, want, text.Append(nil, "", key))
			}
		})
	}
	all.Wait()
}

func TestHashIsThatOfTheText(t *testing.T) {
	t.Parallel()
	require.Equal(t, clientkey.Hash([]byte("a")), clientkey.Hash(bytes.Clone([]byte("a"))))
	require.NotEqual(t, clientkey.Hash([]byte("a")), clientkey.Hash([]byte("b")))
}

func FuzzKey(f *testing.F) {
	f.Add("a", "b|c", "a|b", "c")
	f.Add("a", "", "a", "|")
	f.Add(`a\`, "|b", `a`, `\|b`)
	f.Add("{", "}", "\x00", "\n")
	f.Add("a", strings.Repeat("b", 63), "a", strings.Repeat("b", 62))
	f.Add("a", strings.Repeat("|", 1025), "a", strings.Repeat("|", 1026))
	f.Fuzz(func(t *testing.T, name1, part1, name2, part2 string) {
		same := name1 == name2 && part1 == part2
		key1, key2 := clientkey.Join(name1, part1), clientkey.Join(name2, part2)
		if (key1 == key2) != same {
			t.Fatalf("Join(%q, %q) = %q, Join(%q, %q) = %q", name1, part1, key1, name2, part2, key2)
		}
		if clientkey.Join(name1) == key2 || clientkey.Join(name1, part1, part2) == key2 {
			t.Fatalf("tuples of different lengths meet: %q", key2)
		}
		text1, text2 := slotText(key1), slotText(key2)
		if (text1 == text2) != same {
			t.Fatalf("%q and %q in the slot: %q and %q", key1, key2, text1, text2)
		}
		for _, r := range text1 {
			if r < ' ' || r > '~' || strings.ContainsRune("{}", r) {
				t.Fatalf("%q in the hash tag", text1)
			}
		}
		if len(text1) > 64 {
			t.Fatalf("%d bytes in the hash tag", len(text1))
		}
		if joined := string(clientkey.Text{}.Append(nil, clientkey.Join(name1, ""), part1)); joined != text1 {
			t.Fatalf("the prefix of %q and %q are %q, not %q", name1, part1, joined, text1)
		}
	})
}

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
