package httpfields_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

func TestPlainTextIfAccepted(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]bool{
		"":                                    false,
		"*/*":                                 false,
		"application/problem+json":            false,
		"application/json":                    false,
		"application/json, text/plain, */*":   false, // as axios asks
		"text/html,application/xhtml+xml,*/*": false, // as browsers do
		"image/png":                           false,
		"text/html":                           false,
		"text/plain":                          true,
		"Text/Plain":                          true,
		"text/plain; charset=utf-8":           true,
		"text/*":                              true,
		"text/plain, */*":                     true, // named, not just liked
		"text/plain;q=0.5, */*;q=0.1":         true,
		"text/plain;q=0.1, */*":               false,
		"text/plain;q=0.9, application/json":  false,
		"text/plain, application/json;q=0.9":  true,
		"text/plain, application/problem+json;q=0.999, application/json;q=0": true,
		"text/plain, application/*":                 true,
		"text/plain;q=0":                            false,
		"text/plain;q=0, */*;q=0.1":                 false,
		"text/plain;q=NaN":                          false,
		"text/plain;q=-1":                           false,
		"text/plain;q=1.0000":                       true, // read as a number
		"text/plain;q=":                             false,
		"text/plain;Q=0.1, application/json;q=0.01": true,
		"text/plain;format=flowed, text/plain;q=0.1, */*;q=0.5":            true,
		"text/plain;q=0.1, text/plain;format=flowed, */*;q=0.5":            true,
		"application/problem+json;q=0, application/json, text/plain;q=0.9": true,
		`application/json;x="a,text/plain,b"`:                              false,
		`application/json;x="\",text/plain"`:                               false,
		`text/plain;x=";q=0"`:                                              false, // quotes are not read
		"application/json;a=1;a=2, text/plain;q=0.1":                       false,
		"text/plain" + strings.Repeat(", image/png", 200):                  false, // not read
		";,;;=,text/":                               false,
		"application/json;q=0.2,text/plain":         true,
		"application/json;q=0, */*":                 true, // anything but JSON
		"text/plain;q=1.1":                          false,
		"text/plain;q=0.5, application/*;q=0.5":     true,
		"text/*;q=0.5, application/json;q=0.5":      false,
		"text/plain;q=0.5, application/json;q=.5":   false,
		"image/png, application/json;q=0":           false,
		"text/*;q=0.1, */*, application/json;q=0.5": false, // the most specific range counts
	} {
		assert.Equal(t, want, httpfields.PrefersText(accept), "%q", accept)
	}
	padding := ";a=" + strings.Repeat("b", 1024-len("text/plain;a="))
	require.True(t, httpfields.PrefersText("text/plain"+padding), "1024 bytes are read")
	require.False(t, httpfields.PrefersText("text/plain"+padding+"b"))
}

// FuzzAccept wants text for no client whose Accept excludes it, and whatever the case of its
// letters.
func FuzzAccept(f *testing.F) {
	for _, accept := range []string{"", "*/*", "text/plain", "text/plain;q=0.5,*/*;q=0.1",
		"text/*;q=1.000", `text/plain;x=","`, ",;="} {
		f.Add(accept)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		text := httpfields.PrefersText(accept)
		if text {
			lower := strings.ToLower(accept)
			named := false
			for _, media := range []string{"text/plain", "text/*", "*/*"} {
				named = named || strings.Contains(lower, media)
			}
			require.True(t, named, "%q", accept)
			require.False(t, httpfields.PrefersText(accept+",application/problem+json;q=1"), "%q", accept)
		}
		if strings.IndexFunc(accept, func(r rune) bool { return r >= 0x80 }) < 0 {
			require.Equal(t, text, httpfields.PrefersText(strings.ToUpper(accept)), "%q", accept)
		}
	})
}
