package main

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/clientkey"
)

// answer is yes, no, or not given: the value of --hash.
type answer struct{ given, yes bool }

func (a *answer) Set(text string) (err error) {
	a.given = true
	a.yes, err = strconv.ParseBool(text)
	return err
}

func (a *answer) String() string { return strconv.FormatBool(a.yes) }

func (a *answer) Type() string { return "bool" }

// flag adds --hash to the flags of a command that takes a client.
func (a *answer) flag(flags *pflag.FlagSet) {
	flags.Var(a, "hash", "CLIENT is a hash, as top shows it; --hash=false if its name only reads like one")
	flags.Lookup("hash").NoOptDefVal = "true"
}

// client is a client as its policy knows it: by the key that the policy's key function returns, or by the hash that
// Redis has in its place.
type client struct {
	key    string
	hashed bool
}

// client returns the client that a text names. Clients choose their names: no text is guessed to be a hash.
func (t *tool) client(of ginlimit.PolicyInfo, text string, hash answer) (client, error) {
	switch {
	case text == "":
		return client{}, usage("the client is empty")
	case hash.yes && !clientkey.IsHash(text):
		return client{}, usage("%.64q is no hash as top shows it: # and 43 letters, digits, - or _", text)
	case hash.yes:
		return client{text, true}, nil
	case !hash.given && clientkey.IsHash(text):
		return client{}, usage("%s may be a hash or a client of this name: give --hash if top shows it so, "+
			"or --hash=false", text)
	}
	if of.Name != "" { // it is served
		if err := t.checkSecret(of); err != nil {
			return client{}, err
		}
	}
	key, err := clientKey(of, text)
	return client{key, false}, err
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
	return "", usage("policy %q counts by address, and %.64q is none", p.Name, text)
}

// stored returns a client as Redis has it in overrides: with a secret, a hash.
func (t *tool) stored(policy string, c client) (string, error) {
	secret, err := t.keySecret()
	if err != nil || secret == nil || c.key == "" || c.hashed {
		return c.key, err
	}
	return string(clientkey.NewText(secret).Append(nil, ginlimit.Key(policy, ""), c.key)), nil
}

// overridable reports why a client cannot have an override: processes look for the client, or for its hash if it is
// secret.
func overridable(of ginlimit.PolicyInfo, c client) error {
	if c.hashed && of.Name != "" && !hasSecret(of) {
		return usage("policy %q has no WithKeySecret, so its overrides are of clients and not of hashes", of.Name)
	}
	return nil
}

func hasSecret(p ginlimit.PolicyInfo) bool { return slices.Contains(p.Options, "WithKeySecret") }
