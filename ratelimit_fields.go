package ginlimit

import "strconv"

// The fields of draft-ietf-httpapi-ratelimit-headers-11, each a List of Items with Parameters (RFC 9651). They are
// written here and nowhere else: another draft may rename the parameters.

// The fields as net/http spells them.
const (
	headerPolicy    = "Ratelimit-Policy"
	headerRateLimit = "Ratelimit"
)

const (
	// mostInteger is the largest Integer there is (RFC 9651, section 3.3.1): of 15 digits.
	mostInteger = 999_999_999_999_999
	// longestName is how much is told of a name.
	longestName = 64
)

// appendPolicy appends an Item of RateLimit-Policy: q tokens in w seconds.
func appendPolicy(dst []byte, name string, q, w int64) []byte {
	dst = appendParameter(appendName(dst, name), ";q=", q)
	return appendParameter(dst, ";w=", w)
}

// appendRateLimit appends an Item of RateLimit: r tokens are left, and in t seconds there are more, unless t is 0.
func appendRateLimit(dst []byte, name string, r, t int64) []byte {
	dst = appendParameter(appendName(dst, name), ";r=", r)
	if t > 0 {
		dst = appendParameter(dst, ";t=", t)
	}
	return dst
}

func appendName(dst []byte, name string) []byte {
	if len(dst) > 0 {
		dst = append(dst, ", "...)
	}
	return append(append(append(dst, '"'), name...), '"')
}

func appendParameter(dst []byte, key string, n int64) []byte {
	return strconv.AppendInt(append(dst, key...), min(n, mostInteger), 10)
}

// fieldName returns a name as it may stand in a String and as a Token (RFC 9651, sections 3.3.3 and 3.3.4), with a
// hyphen for what may not, and for each byte of it.
func fieldName(name string) string {
	if name == "" || !isAlpha(name[0]) && name[0] != '*' {
		name = "limit-" + name
	}
	text := []byte(name[:min(len(name), longestName)])
	for i, b := range text {
		if !isTokenByte(b) && b != ':' && b != '/' {
			text[i] = '-'
		}
	}
	return string(text)
}
