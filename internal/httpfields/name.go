package httpfields

import (
	"slices"
	"strings"
)

// maxName is how many bytes a name has in the fields.
const maxName = 64

// Name returns a name that is valid as a String and as a Token (RFC 9651, sections 3.3.3 and
// 3.3.4). A hyphen replaces each invalid byte.
func Name(name string) string {
	if name == "" || !isAlpha(name[0]) && name[0] != '*' {
		name = "limit-" + name
	}
	text := []byte(name[:min(len(name), maxName)])
	for i, b := range text {
		if !isTokenByte(b) && b != ':' && b != '/' {
			text[i] = '-'
		}
	}
	return string(text)
}

// IsToken reports whether text is a token, as the name of a header field is (RFC 9110, section
// 5.6.2).
func IsToken(text string) bool {
	return text != "" && !slices.ContainsFunc([]byte(text), func(b byte) bool { return !isTokenByte(b) })
}

func isTokenByte(c byte) bool {
	return '0' <= c && c <= '9' || isAlpha(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func isAlpha(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
