package clientkey

import (
	"fmt"
	"reflect"
	"strconv"
)

// OfValue returns a value as the text of a key, "" for nil. It is false for a value that is no key.
func OfValue(value any) (text string, ok bool) {
	of := reflect.Indirect(reflect.ValueOf(value))
	switch kind := of.Kind(); {
	case kind == reflect.Invalid:
		return "", true
	case kind == reflect.String: // a String method might hide the value
		return of.String(), true
	case of.CanInt():
		return strconv.FormatInt(of.Int(), 10), true
	case of.CanUint() && kind != reflect.Uintptr:
		return strconv.FormatUint(of.Uint(), 10), true
	case kind == reflect.Struct || kind == reflect.Array:
		if s, ok := value.(fmt.Stringer); ok {
			return s.String(), true
		}
	}
	return "", false
}
