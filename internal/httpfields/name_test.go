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

func TestNamesOfLimits(t *testing.T) {
	t.Parallel()
	named := func(policy string, several bool, own ...string) (names []string) {
		limits := make([]httpfields.Limit, len(own))
		for i, name := range own {
			limits[i].Name, _ = strings.CutPrefix(name, "unit ")
			if limits[i].Name != name {
				limits[i].Unit = httpfields.ConcurrentRequests
			}
		}
		httpfields.NameLimits(policy, several, limits)
		for _, limit := range limits {
			require.Equal(t, string(httpfields.QuotaProblem("", limit.Name)), string(limit.Problem))
			names = append(names, limit.Name)
		}
		return names
	}
	require.Equal(t, []string{"a"}, named("a", false, "m"))
	require.Equal(t, []string{"limit-2nd-m", "limit-2nd-limit-15m"}, named("2nd", true, "m", "15m"))
	require.Equal(t, []string{"a", "a-c"}, named("a", false, "m", "unit c"))
	require.Equal(t, []string{"a-m", "a-m-2", "a-h", "a-m-3"}, named("a", true, "m", "m", "h", "m"))
	require.Equal(t, []string{"a-m-2", "a-m", "a-m-3"}, named("a", true, "m-2", "m", "m"))
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
