package wire

import (
	"strconv"
	"strings"
	"time"
)

// OverrideKeys are the keys of a prefix' overrides: their texts by name, when they end, and the latest changes.
func OverrideKeys(prefix string) []string {
	return inOneSlot(prefix, "overrides", "", ":ends", ":changes")
}

// OverrideStamp is the field of the last change among the texts of overrides.
const OverrideStamp = ""

// OverrideScript returns the source of the script that changes overrides.
func OverrideScript() string { return part("override") }

// OverrideChange sets an override, or ends it if its text is empty.
type OverrideChange struct {
	Name, Text string
	Ends       time.Time
}

// OverrideChanges are made together. Their mark is no other's, and has no "|".
type OverrideChanges struct {
	Mark    string
	Limit   int // how many overrides there may be
	Kept    int // how many names and stamps of the latest changes
	Changes []OverrideChange
}

// Encode returns the arguments of override.lua.
func (o *OverrideChanges) Encode() []any {
	args := []any{o.Mark, o.Limit, o.Kept}
	for _, c := range o.Changes {
		args = append(args, c.Name, c.Text, c.Ends.UnixMilli())
	}
	return args
}

// OverrideTurn returns the turn of a stamp: a later stamp has a higher one, as long as the store loses nothing. It is 0
// of a stamp that override.lua has not made.
func OverrideTurn(stamp string) uint64 {
	turn, _, _ := strings.Cut(stamp, " ")
	n, err := strconv.ParseUint(turn, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// IsOverrideStamp reports whether a member of the latest changes is a stamp, and no name.
func IsOverrideStamp(member string) bool { return !strings.Contains(member, "|") }

// inOneSlot returns names of keys of one hash slot. No client's key is in braces with them, as it has a
// separator or is a hash.
func inOneSlot(prefix, tag string, ends ...string) (names []string) {
	if prefix != "" {
		prefix += ":"
	}
	for _, end := range ends {
		names = append(names, prefix+"{"+tag+"}"+end)
	}
	return names
}
