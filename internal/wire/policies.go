package wire

import (
	"strings"
	"time"
)

// PolicyKeys are the keys of the policies that are published under a prefix: their texts by name, when each
// was last published, and when by which process.
func PolicyKeys(prefix string) []string {
	return inOneSlot(prefix, "policies", "", ":seen", ":processes")
}

// PublishScript returns the source of the script that publishes policies.
func PublishScript() string { return part("publish") }

// Publication is what a process publishes: texts of policies by name.
type Publication struct {
	Process    string // without a space
	Life       time.Duration
	MaxTexts   int // of all processes
	MaxMembers int // policies, each counted once for each process
	Texts      map[string]string
}

// Encode returns the arguments of publish.lua.
func (p *Publication) Encode() []any {
	args := []any{p.Process, p.Life.Milliseconds(), p.MaxTexts, p.MaxMembers}
	for name, text := range p.Texts {
		args = append(args, name, text)
	}
	return args
}

// PublishedAs returns what says that a process has published a policy.
func PublishedAs(name, process string) string { return name + " " + process }

// PublishedBy returns the name of a policy and the process that has published it.
func PublishedBy(member string) (name, process string) {
	name, process, _ = strings.Cut(member, " ")
	return name, process
}
