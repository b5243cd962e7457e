package ginlimit

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/httpfields"
)

// KeyFunc returns the key that a request is counted under. A nil KeyFunc is an error.
//
// An empty key and an error go to the error handler, and the request is not counted. The default handler answers 500, 400
// if the error wraps [ErrBadRequest], and 403 if it wraps [ErrUnknownClient].
type KeyFunc func(*gin.Context) (string, error)

// ByHeader returns the value of a header, or [Key] of the values of several.
//
// If a header is missing, the error wraps [ErrNoKey] and [ErrBadRequest], and the response is 400 and names the header. If a header comes
// several times, the first value counts. Clients can send any header: use one that is checked in front of the
// application. It panics without names and on an invalid one.
func ByHeader(names ...string) KeyFunc {
	if len(names) == 0 {
		panic(errors.New("ginlimit: ByHeader without a header"))
	}
	canonical := make([]string, len(names))
	for i, name := range names {
		if !httpfields.IsToken(name) {
			panic(fmt.Errorf("ginlimit: ByHeader: %q is not the name of a header", name))
		}
		canonical[i] = http.CanonicalHeaderKey(name)
	}
	return func(c *gin.Context) (string, error) {
		values := make([]string, len(canonical))
		for i, name := range canonical {
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
		return Key(values[0], values[1:]...), nil
	}
}

// missingHeader is the error of a request without a required header.
type missingHeader struct{ name string }

func (e *missingHeader) Error() string {
	return ErrNoKey.Error() + ": the request has no header " + e.name
}
func (e *missingHeader) Unwrap() []error { return []error{ErrNoKey, ErrBadRequest} }

// ByParam returns a parameter of the route, such as id in /users/:id.
//
// If the route has no such parameter, the error wraps [ErrNoKey]. It panics without a name.
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

// ByFirst returns the first key found: an API key, say, or else the address. For other limits with each, use [FirstOf].
//
// A function finds none if it returns an empty key or an error that wraps [ErrNoKey]; another error ends the search, as
// [ErrBadRequest] of a malformed key does. The
// result is [Key] of the function's index, from 0, and its key, so that no client reaches an address' bucket with an
// API key that looks like the address. It panics without functions and on a nil one.
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

// ByAll combines all keys into one: each user of each tenant, say.
//
// The result is [Key] of what the functions returned. If one returns an error or an empty key, so does ByAll. It
// panics without functions and on a nil one.
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

// Key returns the key that a policy named name uses: Key(name, what its [KeyFunc] returned).
//
// Different tuples have different keys. To change the buckets of a policy's client, prefer the methods of [Policy].
func Key(name string, parts ...string) string {
	return clientkey.Join(name, parts...)
}
