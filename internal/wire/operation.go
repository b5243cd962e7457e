package wire

import (
	"strings"
	"time"
)

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
func EncodeOverrides(stamp string, most int, changes []OverrideChange) []any {
	args := []any{stamp, most}
	for _, c := range changes {
		args = append(args, c.Name, c.Text, c.Ends.UnixMilli())
	}
	return args
}

// PolicyKeys are the keys of the policies that are published under a prefix: their texts by name, when each
// was last published, and when by which process.
func PolicyKeys(prefix string) []string {
	return inOneSlot(prefix, "policies", "", ":seen", ":processes")
}

// PublishScript returns the source of the script that publishes policies.
func PublishScript() string { return part("publish") }

// Publication is what a process publishes: texts of policies by name.
type Publication struct {
	Process     string // without a space
	Now         time.Time
	Life        time.Duration
	MostTexts   int // of all processes
	MostMembers int // policies, each counted once for each process
	Texts       map[string]string
}

// Encode returns the arguments of publish.lua.
func (p *Publication) Encode() []any {
	args := []any{p.Process, p.Now.UnixMilli(), p.Life.Milliseconds(), p.MostTexts, p.MostMembers}
	for name, text := range p.Texts {
		args = append(args, name, text)
	}
	return args
}

// PublishedBy returns the name of a policy and the process that has published it.
func PublishedBy(member string) (name, process string) {
	name, process, _ = strings.Cut(member, " ")
	return name, process
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
