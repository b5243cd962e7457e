package ginlimit

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/clientkey"
)

// ByClientIP returns the client's address; an IPv6 client is its /64.
//
// The address is that of [gin.Context.ClientIP]. The engine's SetTrustedProxies and TrustedPlatform decide how far
// it can be trusted. By default Gin trusts X-Forwarded-For from any client, so clients can spoof their IP; the
// limiter then logs one warning. With TrustedPlatform, call SetTrustedProxies(nil) as well: for a request without the
// platform's header Gin uses X-Forwarded-For. An IPv4-mapped IPv6 address and a NAT64 address (64:ff9b::/96) count as their IPv4
// address. An address that cannot be read, such as that of a unix socket, is an error that wraps [ErrNoKey].
func ByClientIP(c *gin.Context) (string, error) {
	return byAddress(c, clientkey.BitsV4, clientkey.BitsV6)
}

// ByClientIPPrefix is [ByClientIP] for networks of v4 bits in IPv4 and v6 bits in IPv6.
//
// ByClientIPPrefix(32, 64) is ByClientIP. It panics unless 1 ≤ v4 ≤ 32 and 1 ≤ v6 ≤ 128.
func ByClientIPPrefix(v4, v6 int) KeyFunc {
	if v4 < 1 || v4 > 32 || v6 < 1 || v6 > 128 {
		panic(fmt.Errorf("ginlimit: ByClientIPPrefix(%d, %d): want 1 to 32 and 1 to 128 bits", v4, v6))
	}
	return func(c *gin.Context) (string, error) { return byAddress(c, v4, v6) }
}

func byAddress(c *gin.Context, v4, v6 int) (string, error) {
	addr, err := clientAddress(c)
	if err != nil {
		return "", err
	}
	return clientkey.Address(addr, v4, v6), nil
}

// clientAddress returns the client's address in its canonical form.
func clientAddress(c *gin.Context) (netip.Addr, error) {
	decides, _ := c.Get(policyKey)
	if user, ok := decides.(addressUser); ok {
		user.warnSpoofable(c)
	}
	address := c.ClientIP()
	if address == "" { // Gin cannot read a zone, as in [fe80::1%eth0]:80
		if remote, err := netip.ParseAddrPort(c.Request.RemoteAddr); err == nil {
			return clientkey.Canonical(remote.Addr()), nil
		}
	}
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return addr, fmt.Errorf("%w: the client address %.64q cannot be read", ErrNoKey, address)
	}
	return clientkey.Canonical(addr), nil
}

// addressUser is told that a request's address is used.
type addressUser interface{ warnSpoofable(*gin.Context) }

// policyKey is where a [gin.Context] keeps the policy that decides, an addressUser.
const policyKey = "github.com/ginlimit/ginlimit.policy"

// warnSpoofable logs a warning if clients can spoof their address. Each policy looks once, and a limiter warns once.
func (p *Policy) warnSpoofable(c *gin.Context) {
	if p.addressUsed.Load() {
		return
	}
	p.addressUsed.Store(true)
	if header := trustedHeader(c, engineHeaders(c)); header != "" && !p.limiter.warned.Swap(true) {
		p.logger.WarnContext(c.Request.Context(), "ginlimit: Gin trusts "+header+" from any client; clients can spoof their IP. "+
			"Call SetTrustedProxies with the addresses of your proxies, or with nil if there are none")
	}
}

// warnNoClient logs a warning, at most once a minute, if a method is given a key that [ByClientIP], the policy's KeyFunc,
// never returns. What reads as an address is meant as one. Other text may be the key of a worker, which needs no KeyFunc,
// unless the policy serves requests.
func (p *Policy) warnNoClient(ctx context.Context, client string) {
	if p.keyed {
		return
	}
	isAddress, isKey := clientkey.ReadAddress(client)
	if !isKey && (isAddress || p.serves.Load()) && p.limiter.noClient.Allow() {
		p.logger.WarnContext(ctx, "ginlimit: no request counts under the key that a method was given, as ByClientIP never returns it",
			"name", p.name)
	}
}

// trustedHeader returns the first of the headers that Gin trusts from any client, or "". A header of the engine's
// TrustedPlatform is not one of them: with it the application states that every request comes through the platform.
func trustedHeader(c *gin.Context, names []string) string {
	const claimed, noAddress = "198.51.100.1", "no address" // all addresses here are for documentation (RFC 5737, RFC 3849)
	forged := c.Copy()
	trusts := func(stranger, name, value string) bool {
		forged.Request = &http.Request{RemoteAddr: stranger, Header: http.Header{}}
		forged.Request.Header.Set(name, value)
		return forged.ClientIP() == value
	}
	for _, name := range names {
		for _, stranger := range []string{"192.0.2.1:1", "[2001:db8::1]:1"} {
			// Gin takes any text from the platform's header, and only addresses from other headers.
			if trusts(stranger, name, claimed) && !trusts(stranger, name, noAddress) {
				return name
			}
		}
	}
	return ""
}

// engineHeaders returns the RemoteIPHeaders of a context's engine, for which Gin has no method, or Gin's defaults if this
// version of Gin has no such field.
func engineHeaders(context any) []string {
	if engine := reflect.Indirect(reflect.ValueOf(context).Elem().FieldByName("engine")); engine.Kind() == reflect.Struct {
		headers := engine.FieldByName("RemoteIPHeaders")
		if headers.Kind() == reflect.Slice && headers.Type().Elem().Kind() == reflect.String {
			names := make([]string, headers.Len())
			for i := range names {
				names[i] = headers.Index(i).String()
			}
			return names
		}
	}
	return []string{"X-Forwarded-For", "X-Real-IP"}
}
