package ginlimit

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"

	"github.com/gin-gonic/gin"
)

// KeyFunc says whom a request is counted for. A nil one is a fault.
//
// An empty key and an error both go to the error handler: the request is counted for nobody.
type KeyFunc func(*gin.Context) (string, error)

// clientPrefixV6 is how many bits of an IPv6 address tell clients apart: a site is handed a /64 at
// least (RFC 6177), and its hosts take new addresses from it at will (RFC 8981).
const clientPrefixV6 = 64

// ByClientIP counts for the client's address, of IPv6 for its /64.
//
// The address is what [gin.Context.ClientIP] says, so it is as trustworthy as the engine's
// SetTrustedProxies and TrustedPlatform make it; by default Gin believes X-Forwarded-For from anyone.
// An IPv4-mapped IPv6 address counts as the IPv4 address. An address that cannot be read is an error
// that wraps [ErrNoKey].
func ByClientIP(c *gin.Context) (string, error) {
	address := c.ClientIP()
	if address == "" { // Gin does not read a zone, as in [fe80::1%eth0]:80
		if remote, err := netip.ParseAddrPort(c.Request.RemoteAddr); err == nil {
			address = remote.Addr().String()
		}
	}
	return addressKey(address)
}

func addressKey(address string) (string, error) {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return "", fmt.Errorf("%w: the client address %.64q cannot be read", ErrNoKey, address)
	}
	// Unmapped before it is cut, or all of IPv4 would share ::/64.
	addr = addr.Unmap()
	if addr.Is4() {
		return addr.String(), nil
	}
	prefix, err := addr.Prefix(clientPrefixV6) // without a zone
	return prefix.String(), err
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
// as [Key] begins with it, makes Key(name, key) of the key.
func appendSlotText(dst []byte, name, key string) []byte {
	start := len(dst)
	dst = append(dst, name...)
	if name != "" && strings.ContainsAny(key, `|\`) {
		key = keyEscaper.Replace(key)
	}
	dst = append(dst, key...)
	text := dst[start:]
	plain := len(text) <= longestKey && text[0] != hashMark
	for i := 0; plain && i < len(text); i++ {
		plain = ' ' <= text[i] && text[i] <= '~' && text[i] != '{' && text[i] != '}'
	}
	if plain {
		return dst
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.AppendEncode(append(dst[:start], hashMark), sum[:])
}
