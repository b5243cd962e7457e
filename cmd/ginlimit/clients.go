package main

import (
	"strconv"

	"github.com/spf13/pflag"

	"github.com/ginlimit/ginlimit/contrib/admin/operate"
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

// of returns what the flag says, for the operator.
func (a *answer) of() operate.Hash {
	switch {
	case !a.given:
		return operate.HashUnsaid
	case a.yes:
		return operate.IsHash
	}
	return operate.IsName
}
