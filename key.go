package ginlimit

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/gintrust"
	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// KeyFunc returns the key that a request is counted under. An empty key and an error go to the
// error handler. Wrap [ErrNoKey] if there is none, and [ErrBadRequest] if the client is at fault.
type KeyFunc func(*gin.Context) (string, error)

// ByHeader returns the value of a header, or [Key] of the values of several. Clients can send any
// header: use one that is checked in front of the application. If one is missing, the error wraps
// [ErrNoKey] and [ErrBadRequest], and the 400 names it. It panics without names and on an invalid
// one.
func ByHeader(names ...string) KeyFunc {
	if len(names) == 0 {
		panic(invalid("ByHeader without a header"))
	}
	canonical := make([]string, len(names))
	for i, name := range names {
		if !httpfields.IsToken(name) {
			panic(invalid("ByHeader: %q is not the name of a header", name))
		}
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	return byHeader(canonical).key
}

// byHeader is the headers of a key. Go names a method after its type, wherever its maker is inlined: kindOfKey has the
// name from there.
type byHeader []string

func (names byHeader) key(c *gin.Context) (string, error) {
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = c.Request.Header.Get(name)
		if name == "Host" { // net/http removes it from the headers
			values[i] = c.Request.Host
		}
		if values[i] == "" {
			return "", &missingHeader{name}
		}
	}
	if len(values) == 1 {
		return values[0], nil
	}
	return Key(values...), nil
}

// ByParam returns a parameter of the route, such as id in /users/:id; if it is missing, the error wraps
// [ErrNoKey]. It panics without a name.
func ByParam(name string) KeyFunc {
	if name == "" {
		panic(invalid("ByParam without a name"))
	}
	return byParam(name).key
}

type byParam string

func (name byParam) key(c *gin.Context) (string, error) {
	value := c.Param(string(name))
	if value == "" {
		return "", fmt.Errorf("%w: the route has no parameter %q", ErrNoKey, name)
	}
	return value, nil
}

// ByAny returns the first key found: an API key, say, or else the address, with [Key] of the
// function's index, so that they share no bucket. A function finds none if its key is empty or its
// error wraps [ErrNoKey]; another error ends the search. To limit each differently, use [FirstOf].
// It panics without functions and on a nil one.
func ByAny(funcs ...KeyFunc) KeyFunc {
	checkKeyFuncs("ByAny", funcs)
	return byAny(funcs).key
}

type byAny []KeyFunc

func (funcs byAny) key(c *gin.Context) (string, error) {
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

// ByAll combines all keys into one by [Key]: each user of each tenant, say. It returns the first error or
// empty key. It panics without functions or on nil.
func ByAll(funcs ...KeyFunc) KeyFunc {
	checkKeyFuncs("ByAll", funcs)
	return byAll(funcs).key
}

type byAll []KeyFunc

func (funcs byAll) key(c *gin.Context) (string, error) {
	keys := make([]string, len(funcs))
	for i, f := range funcs {
		key, err := f(c)
		if err != nil || key == "" {
			return "", err
		}
		keys[i] = key
	}
	return Key(keys...), nil
}

// kindOfKey names a key function: as this package does, or as Go names the application's.
func kindOfKey(f KeyFunc) string {
	if f == nil {
		f = ByClientIP
	}
	name := funcName(f)
	short, ok := strings.CutPrefix(name, reflect.TypeFor[KeyFunc]().PkgPath()+".")
	if !ok {
		return name[strings.LastIndexByte(name, '/')+1:]
	}
	short, _, _ = strings.Cut(short, ".") // of byHeader.key-fm the type
	return strings.ToUpper(short[:1]) + short[1:]
}

func checkKeyFuncs(name string, funcs []KeyFunc) {
	if len(funcs) == 0 {
		panic(invalid("%s without functions", name))
	}
	for i, f := range funcs {
		if f == nil {
			panic(invalid("%s: function %d is nil", name, i+1))
		}
	}
}

// ByValue returns what the application has set in the [gin.Context] under a name, such as the user:
// a string, an integer, or a struct or array with a String method, such as a UUID. If it is
// missing, empty or nil, the error wraps [ErrNoKey]. It panics without a name.
func ByValue(name string) KeyFunc {
	if name == "" {
		panic(invalid("ByValue without a name"))
	}
	return byValue(name).key
}

type byValue string

func (name byValue) key(c *gin.Context) (string, error) {
	value, _ := c.Get(string(name))
	key, ok := clientkey.OfValue(value)
	switch {
	case !ok:
		return "", fmt.Errorf("ginlimit: the context's value %q is a %T; want a string, an integer, "+
			"or a struct or array with a String method",
			name, value)
	case key == "":
		return "", fmt.Errorf("%w: the context has no value %q", ErrNoKey, name)
	}
	return key, nil
}

// ByRoute returns the method and the route's path, such as GET and /users/:id; all requests without a route
// count as one. [ByAll] adds another key.
func ByRoute(c *gin.Context) (string, error) {
	if c.FullPath() == "" { // a client could invent methods
		return Key("", ""), nil
	}
	return Key(c.Request.Method, c.FullPath()), nil
}

// Key joins one or more parts into one key. Different lists of parts have different keys. A part of more than
// 1,024 bytes stands as a hash. In Redis, client k of policy n has the key Key(n, k).
func Key(parts ...string) string {
	if len(parts) == 0 {
		return ""
	}
	return clientkey.Join(parts[0], parts[1:]...)
}

// AddrKey returns the key of an address as [ByClientIP] returns it. The zero Addr has the key "", which no
// method takes.
func AddrKey(addr netip.Addr) string {
	if !addr.IsValid() {
		return ""
	}
	return clientkey.Address(clientkey.Canonical(addr), clientkey.BitsV4, clientkey.BitsV6)
}

// ByClientIP returns the client's address as [gin.Context.ClientIP] finds it; an IPv6 client is its
// /64, an IPv4-mapped or NAT64 address its IPv4 address. By default Gin trusts X-Forwarded-For from
// any client, so clients can spoof their IP; the limiter logs one warning. Call SetTrustedProxies
// with your proxies, or with nil if there are none or Gin has a TrustedPlatform. If the address
// cannot be read, as with a unix socket, the error wraps [ErrNoKey].
func ByClientIP(c *gin.Context) (string, error) {
	return byAddress(c, clientkey.BitsV4, clientkey.BitsV6)
}

// ByClientIPPrefix is [ByClientIP] for networks of v4 bits in IPv4, 1 to 32, and v6 bits in IPv6, 1 to 128;
// it panics on others. ByClientIP has (32, 64).
func ByClientIPPrefix(v4, v6 int) KeyFunc {
	if v4 < 1 || v4 > 32 || v6 < 1 || v6 > 128 {
		panic(invalid("ByClientIPPrefix(%d, %d): want 1 to 32 and 1 to 128 bits", v4, v6))
	}
	return byClientIPPrefix{v4, v6}.key
}

type byClientIPPrefix struct{ v4, v6 int }

func (bits byClientIPPrefix) key(c *gin.Context) (string, error) {
	return byAddress(c, bits.v4, bits.v6)
}

func byAddress(c *gin.Context, v4, v6 int) (string, error) {
	decides, _ := c.Get(stateKey)
	if finder, ok := decides.(addressFinder); ok {
		return keyOfAddress(finder.findAddress(c), v4, v6)
	}
	return keyOfAddress((*gintrust.Trust)(nil).ClientAddress(c, nil, nil), v4, v6)
}

// keyOfAddress returns the key of a client's address.
func keyOfAddress(a gintrust.Address, v4, v6 int) (string, error) {
	switch {
	case !a.OK:
		return "", unreadable(a.Text)
	case v4 == clientkey.BitsV4 && a.Text != "":
		return a.Text, nil // without an allocation
	}
	return clientkey.Address(a.Addr, v4, v6), nil
}

// unreadable is the error of a client's address that is none.
func unreadable(address string) error {
	return fmt.Errorf("%w: the client address %.64q cannot be read", ErrNoKey, address)
}

// addressFinder finds the address of a request's client, and learns that it is used.
type addressFinder interface {
	findAddress(*gin.Context) gintrust.Address
}

// stateKey is where a [gin.Context] keeps the newest state of a request, an addressFinder.
const stateKey = "github.com/ginlimit/ginlimit.state"

// keyOf returns the key of a request, or an error that wraps [ErrNoKey] if it is empty.
func keyOf(f KeyFunc, c *gin.Context) (string, error) {
	key, err := f(c)
	if err == nil && key == "" {
		err = fmt.Errorf("%w: the key function returned none", ErrNoKey)
	}
	return key, err
}
