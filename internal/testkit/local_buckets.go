package testkit

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/memory"
)

// SetLocalBuckets bounds how many buckets a limiter keeps in the process while Redis does not
// decide. It rounds n up. The limiter has made no decision yet.
//
// No option says this. It replaces the limiter's store, wherever the limiter has it.
func SetLocalBuckets(l *ginlimit.Limiter, n int) error {
	stores := 0
	replaceStores(reflect.ValueOf(l).Elem(), memory.New(n), 3, &stores)
	if stores != 1 {
		return fmt.Errorf("a limiter has %d stores in the process, and is to have one", stores)
	}
	return nil
}

// replaceStores replaces the store in a struct, and in the structs up to so many pointers away.
func replaceStores(v reflect.Value, store *memory.Store, depth int, stores *int) {
	for i := range v.NumField() {
		field := v.Field(i)
		switch {
		case field.Type() == reflect.TypeFor[*memory.Store]():
			if !field.IsNil() {
				*(**memory.Store)(unsafe.Pointer(field.UnsafeAddr())) = store
				*stores++
			}
		case field.Kind() == reflect.Struct:
			replaceStores(field, store, depth, stores)
		case field.Kind() == reflect.Pointer && !field.IsNil() && field.Type().Elem().Kind() == reflect.Struct && depth > 0 &&
			isOurs(field.Type().Elem()):
			replaceStores(field.Elem(), store, depth-1, stores)
		}
	}
}

// isOurs reports whether a type is one of the library.
func isOurs(t reflect.Type) bool {
	const module = "github.com/ginlimit/ginlimit"
	return len(t.PkgPath()) >= len(module) && t.PkgPath()[:len(module)] == module
}
