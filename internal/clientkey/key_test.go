package clientkey_test

import (
	"bytes"
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
	tuples := [][]string{{"a-b", "c"}, {"a", "b-c"}, {"a", "b", "c"}, {"a", "b|c"}, {"a|b", "c"}, {"a|b|c"}, {"abc"},
		{"a", ""}, {"", "a"}, {"a"}, {"a", "", ""}, {`a\`, "b"}, {`a\|b`}, {`a`, `\b`},
		{`a\\`, "b"}, {"|"}, {`\`}, {""}, {"", ""}}
	seen := map[string][]string{}
	for _, tuple := range tuples {
		key := clientkey.Join(tuple[0], tuple[1:]...)
		assert.NotContains(t, seen, key, "%q and %q", tuple, seen[key])
		seen[key] = tuple
	}
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
		for _, name := range []string{"login", `a|\b`, "{a}"} {
			for _, client := range []string{"203.0.113.7", "a|b", `a\b`, `|\`, "{a}", "é", strings.Repeat("long", 40),
				"#"} {
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
