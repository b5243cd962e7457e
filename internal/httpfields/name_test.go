package httpfields_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

func TestName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 100)
	for name, want := range map[string]string{
		"search":          "search",
		"Search.v2_x~":    "Search.v2_x~",
		"two words":       "two-words",
		`say "no" \ {a}`:  "say--no-----a-",
		"a/b:c":           "a/b:c",
		"*":               "*",
		"2nd":             "limit-2nd",
		"/login":          "limit-/login",
		"":                "limit-",
		"Größe":           "Gr----e",
		"日":               "limit----",
		"a\r\nSet-Cookie": "a--Set-Cookie",
		"10/s burst 20":   "limit-10/s-burst-20",
		long:              long[:64],
		"2" + long:        "limit-2" + long[:57],
	} {
		assert.Equal(t, want, httpfields.Name(name), "%q", name)
	}
}

func TestFreeName(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a", httpfields.FreeName("a", nil))
	require.Equal(t, "a", httpfields.FreeName("a", []string{"b", "a-2"}))
	require.Equal(t, "a-2", httpfields.FreeName("a", []string{"a"}))
	require.Equal(t, "a-4", httpfields.FreeName("a", []string{"a-3", "a", "a-2"}))
	require.Equal(t, "a-2-2", httpfields.FreeName("a-2", []string{"a-2", "a-3"}))
}

func TestIsToken(t *testing.T) {
	t.Parallel()
	for c := range 256 {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		want := letter || c < 0x80 && strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) // RFC 9110, section 5.6.2
		assert.Equal(t, want, httpfields.IsToken(string([]byte{byte(c)})), "%q", byte(c))
		assert.Equal(t, want, httpfields.IsToken(string([]byte{'X', byte(c)})), "%q", byte(c))
	}
	require.False(t, httpfields.IsToken(""))
}

// FuzzName wants each name to be valid as a String, as a Token, and in JSON without escapes.
func FuzzName(f *testing.F) {
	for _, name := range []string{"search", "", "2nd", `"`, "\\", "日本", "*x", "a b", strings.Repeat("é", 40)} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got := httpfields.Name(name)
		item, err := httpsfv.UnmarshalItem([]string{got})
		require.NoError(t, err)
		require.Equal(t, httpsfv.Token(got), item.Value)
		item, err = httpsfv.UnmarshalItem([]string{`"` + got + `"`})
		require.NoError(t, err)
		require.Equal(t, got, item.Value)
		text, err := json.Marshal(got)
		require.NoError(t, err)
		require.Equal(t, strconv.Quote(got), strings.ReplaceAll(string(text), `\u0026`, "&"))
		require.Equal(t, got, httpfields.Name(got))
	})
}
