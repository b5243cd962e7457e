package gintrust

import (
	"net"
	"net/http"
	"reflect"
)

// addressHeaders returns the headers that a context's engine takes addresses from, as requests have them.
func addressHeaders(context any) []string {
	headers := remoteIPHeaders(context)
	if platform := engineField(context, "TrustedPlatform"); platform.Kind() == reflect.String && platform.Len() > 0 {
		headers = append(headers, platform.String())
	}
	for i, header := range headers {
		headers[i] = http.CanonicalHeaderKey(header)
	}
	return headers
}

// remoteIPHeaders returns the RemoteIPHeaders of a context's engine, or Gin's defaults if this version
// of Gin has no such field.
func remoteIPHeaders(context any) []string {
	headers := engineField(context, "RemoteIPHeaders")
	if headers.Kind() != reflect.Slice || headers.Type().Elem().Kind() != reflect.String {
		return []string{"X-Forwarded-For", "X-Real-IP"}
	}
	names := make([]string, headers.Len())
	for i := range names {
		names[i] = headers.Index(i).String()
	}
	return names
}

// trustedProxy returns where a request of a proxy comes from that a context's engine trusts, or "".
func trustedProxy(context any) string {
	networks := engineField(context, "trustedCIDRs")
	if networks.Kind() != reflect.Slice || networks.Type() != reflect.TypeFor[[]*net.IPNet]() || networks.Len() == 0 {
		return ""
	}
	return net.JoinHostPort(net.IP(networks.Index(0).Elem().Field(0).Bytes()).String(), "1")
}

// engineOf returns what identifies a context's engine, for which Gin has no method, or nil if this
// version of Gin has no such field.
func engineOf(context any) any {
	if engine := reflect.ValueOf(context).Elem().FieldByName("engine"); engine.Kind() == reflect.Pointer {
		return engine.UnsafePointer()
	}
	return nil
}

// engineField returns a field of a context's engine, or the zero Value.
func engineField(context any, name string) reflect.Value {
	engine := reflect.Indirect(reflect.ValueOf(context).Elem().FieldByName("engine"))
	if engine.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return engine.FieldByName(name)
}
