package wire

import "time"

// OverrideKeys are the keys of a prefix' overrides: their texts by name, and when they end.
func OverrideKeys(prefix string) []string { return inOneSlot(prefix, "overrides", "", ":ends") }

// OverrideStamp is the field of the last change among the texts of overrides.
const OverrideStamp = ""

// OverrideScript returns the source of the script that changes overrides.
func OverrideScript() string { return part("override") }

// OverrideChange sets an override, or ends it if its text is empty.
type OverrideChange struct {
	Name, Text string
	Ends       time.Time
}

// EncodeOverrides returns the arguments of override.lua.
func EncodeOverrides(stamp string, limit int, changes []OverrideChange) []any {
	args := []any{stamp, limit}
	for _, c := range changes {
		args = append(args, c.Name, c.Text, c.Ends.UnixMilli())
	}
	return args
}

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
