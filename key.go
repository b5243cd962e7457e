package ginlimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"
)

// KeyFunc says whom a request is counted for. A nil one is a fault.
//
// An empty key and an error both go to the error handler: the request is counted for nobody.
type KeyFunc func(*gin.Context) (string, error)

// ByHeader counts for what the headers say, which all must be there.
//
// A request without one of them is an error that wraps [ErrNoKey], and is answered 400 with the header's name. Of a
// header that is there several times the first counts. The key of one header is its value, that of several [Key] of
// their values. Anyone can send any header: limit by one that something in
// front of the application has checked. It panics on a name that is no header's, and without any.
func ByHeader(names ...string) KeyFunc {
	if len(names) == 0 {
		panic(errors.New("ginlimit: ByHeader without a header"))
	}
	canonical := make([]string, len(names))
	for i, name := range names {
		if !isToken(name) {
			panic(fmt.Errorf("ginlimit: ByHeader: %q is not the name of a header", name))
		}
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	return func(c *gin.Context) (string, error) {
		values := make([]string, len(canonical))
		for i, name := range canonical {
			values[i] = c.Request.Header.Get(name)
			if name == "Host" { // which net/http keeps apart
				values[i] = c.Request.Host
			}
			if values[i] == "" {
				return "", &missingHeader{name}
			}
		}
		if len(values) == 1 {
			return values[0], nil
		}
		return Key(values[0], values[1:]...), nil
	}
}

// missingHeader is the error of a request without a header that it must have.
type missingHeader struct{ name string }

func (e *missingHeader) Error() string {
	return ErrNoKey.Error() + ": the request has no header " + e.name
}
func (e *missingHeader) Unwrap() error { return ErrNoKey }

// isToken reports whether s can be a header's name (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		if !isTokenByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func isTokenByte(c byte) bool {
	return '0' <= c && c <= '9' || isAlpha(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

func isAlpha(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// ByParam counts for a parameter of the route, as id is one of /users/:id.
//
// A request whose route has no such parameter is an error that wraps [ErrNoKey]. It panics without a name.
func ByParam(name string) KeyFunc {
	if name == "" {
		panic(errors.New("ginlimit: ByParam without a name"))
	}
	return func(c *gin.Context) (string, error) {
		value := c.Param(name)
		if value == "" {
			return "", fmt.Errorf("%w: the route has no parameter %q", ErrNoKey, name)
		}
		return value, nil
	}
}

// ByFirst counts for the first key that there is: of an API key, say, or else of an address.
//
// An error that wraps [ErrNoKey], and an empty key, mean that there is none; another error ends the search. The
// key is [Key] of the function's place, counted from 0, and what it returned, so that nobody reaches an
// address' bucket by an API key that reads like it. It panics without functions and on a nil one.
func ByFirst(funcs ...KeyFunc) KeyFunc {
	check("ByFirst", funcs)
	return func(c *gin.Context) (string, error) {
		var missing []error
		for i, f := range funcs {
			key, err := f(c)
			switch {
			case err == nil && key != "":
				return Key(strconv.Itoa(i), key), nil
			case err != nil && !errors.Is(err, ErrNoKey):
				return "", err
			}
			missing = append(missing, err)
		}
		return "", errors.Join(append(missing, ErrNoKey)...)
	}
}

// ByAll counts for all keys together: for each user of each tenant, say.
//
// The key is [Key] of what the functions returned. An error of one, or an empty key, is that of all. It panics
// without functions and on a nil one.
func ByAll(funcs ...KeyFunc) KeyFunc {
	check("ByAll", funcs)
	return func(c *gin.Context) (string, error) {
		keys := make([]string, len(funcs))
		for i, f := range funcs {
			key, err := f(c)
			if err != nil || key == "" {
				return "", err
			}
			keys[i] = key
		}
		return Key(keys[0], keys[1:]...), nil
	}
}

func check(name string, funcs []KeyFunc) {
	if len(funcs) == 0 {
		panic(fmt.Errorf("ginlimit: %s without functions", name))
	}
	for i, f := range funcs {
		if f == nil {
			panic(fmt.Errorf("ginlimit: %s: function %d is nil", name, i+1))
		}
	}
}

// Key returns the key that a handler named name uses.
//
// The methods of [Limiter] reach the handler's bucket by it: Key(name, what its KeyFunc returned). No
// two tuples have the same key.
func Key(name string, parts ...string) string {
	size, escape := len(name)+len(parts), strings.ContainsAny(name, `|\`)
	for _, part := range parts {
		size += len(part)
		escape = escape || strings.ContainsAny(part, `|\`)
	}
	var key strings.Builder
	key.Grow(size)
	write := func(s string) {
		if escape {
			s = keyEscaper.Replace(s)
		}
		key.WriteString(s)
	}
	write(name)
	for _, part := range parts {
		key.WriteByte('|')
		write(part)
	}
	return key.String()
}

var keyEscaper = strings.NewReplacer(`|`, `\|`, `\`, `\\`)

const (
	longestKey = 64
	hashMark   = '#'
)

// appendSlotText appends a key as it may stand in a slot tag: itself, or where it is long or holds a
// brace or anything but printable ASCII, its hash. No two keys have the same text. A handler's name,
// as [Key] begins with it, makes Key(name, key) of the key. With a secret it is always a hash, made with it.
func appendSlotText(dst []byte, name, key string, macs *sync.Pool) []byte {
	start := len(dst)
	dst = append(dst, name...)
	if name != "" && strings.ContainsAny(key, `|\`) {
		key = keyEscaper.Replace(key)
	}
	dst = append(dst, key...)
	text := dst[start:]
	if macs != nil {
		mac := macs.Get().(hash.Hash)
		defer macs.Put(mac)
		mac.Reset()
		_, _ = mac.Write(text) // it has no error
		var sum [sha256.Size]byte
		return appendHash(dst[:start], mac.Sum(sum[:0]))
	}
	plain := len(text) <= longestKey && text[0] != hashMark
	for i := 0; plain && i < len(text); i++ {
		plain = ' ' <= text[i] && text[i] <= '~' && text[i] != '{' && text[i] != '}'
	}
	if plain {
		return dst
	}
	sum := sha256.Sum256(text)
	return appendHash(dst[:start], sum[:])
}

func appendHash(dst, sum []byte) []byte {
	return base64.RawURLEncoding.AppendEncode(append(dst, hashMark), sum)
}

// newMACs returns a pool of what hashes with a secret, nil if there is none.
func newMACs(secret []byte) *sync.Pool {
	if secret == nil {
		return nil
	}
	return &sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}
}
