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

// OverrideChanges are made by one call after another. Their mark is no other's, and has no "|".
type OverrideChanges struct {
	Mark    string
	Limit   int // how many overrides there may be
	Kept    int // how many names and stamps of the latest changes
	Changes []OverrideChange
}

// unlimited is a limit that no overrides reach.
const unlimited = 1<<31 - 1

// Encode returns the arguments of override.lua for each call, which makes at most n changes. The first one counts all
// against the limit. The later ones have none, or other callers might leave the changes half made: each of some that
// begin at the same time may find room, and then there are more overrides than the limit, until some end.
func (o *OverrideChanges) Encode(n int) (calls [][]any) {
	for from := 0; from < len(o.Changes); from += n {
		rest, mark, limit := o.Changes[from:], o.Mark, o.Limit
		own := min(n, len(rest))
		if from > 0 {
			rest, mark, limit = rest[:own], o.Mark+"."+strconv.Itoa(from), unlimited
		}
		args := []any{mark, limit, o.Kept, own}
		for i, c := range rest {
			if i >= own && c.Text != "" {
				c.Text = "?" // is set later
			}
			args = append(args, c.Name, c.Text, c.Ends.UnixMilli())
		}
		calls = append(calls, args)
	}
	return calls
}

// EndsMissing is the reply of override.lua if the key of the ends lacks overrides.
const EndsMissing = "-"

// OverrideEnd returns the Unix milliseconds when an override ends, by its text. In a string of JSON no quote stands
// without a backslash.
func OverrideEnd(text string) (int64, bool) {
	_, ends, _ := strings.Cut(text, `"until":`)
	end, err := strconv.ParseInt(ends[:max(0, strings.IndexAny(ends, ",}"))], 10, 64)
	return end, err == nil
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
