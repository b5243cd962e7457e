package operate

import (
	"net/netip"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/clientkey"
)

// Client is a client as its policy knows it: by the key that the policy's key function returns, or by the hash that
// Redis has in its place. The zero Client is all clients.
type Client struct {
	Key    string
	Hashed bool
}

// Hash says whether a text is a hash.
type Hash int

// Clients choose their names: a text that reads as a hash may be a name.
const (
	HashUnsaid Hash = iota
	IsHash
	IsName
)

// ReadsAsHash reports whether a client's name has to be said to be one.
func ReadsAsHash(text string) bool { return clientkey.IsHash(text) }

// Client returns the client that a text names. No text is guessed to be a hash.
func (o *Operator) Client(of ginlimit.PolicyInfo, text string, hash Hash) (Client, error) {
	switch {
	case text == "":
		return Client{}, fault("the client is empty")
	case hash == IsHash && !clientkey.IsHash(text):
		return Client{}, fault("%.64q is no hash as top shows it: # and 43 letters, digits, - or _", text)
	case hash == IsHash:
		return Client{text, true}, nil
	case hash == HashUnsaid && clientkey.IsHash(text):
		return Client{}, needs(NeedsHash, "%s may be a hash or a client of this name", text)
	}
	switch has := HasSecret(of); {
	case of.Name == "": // it is not served
	case has && o.Secret == nil:
		return Client{}, needs(NeedsSecret, "policy %q has a WithKeySecret", of.Name)
	case !has && o.Secret != nil:
		return Client{}, needs(NeedsNoSecret, "policy %q has no WithKeySecret", of.Name)
	}
	key, err := clientKey(of, text)
	return Client{key, false}, err
}

// clientKey returns the key of a client. An address is written as the policy knows it.
func clientKey(p ginlimit.PolicyInfo, text string) (string, error) {
	if p.Key != "ByClientIP" {
		return text, nil
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return ginlimit.AddrKey(addr), nil
	}
	if prefix, err := netip.ParsePrefix(text); err == nil && ginlimit.AddrKey(prefix.Addr()) == prefix.Masked().String() {
		return prefix.Masked().String(), nil
	}
	return "", fault("policy %q counts by address, and %.64q is none", p.Name, text)
}

// Stored returns a client as Redis has it in overrides: with a secret, a hash.
func (o *Operator) Stored(policy string, c Client) string {
	if o.Secret == nil || c.Key == "" || c.Hashed {
		return c.Key
	}
	return string(clientkey.NewText(o.Secret).Append(nil, ginlimit.Key(policy, ""), c.Key))
}

// Overridable reports why a client cannot have an override: processes look for the client, or for its hash if it is
// secret.
func Overridable(of ginlimit.PolicyInfo, c Client) error {
	if c.Hashed && of.Name != "" && !HasSecret(of) {
		return fault("policy %q has no WithKeySecret, so its overrides are of clients and not of hashes", of.Name)
	}
	return nil
}
