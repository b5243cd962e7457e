package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
)

// Written is an override as files have it.
type Written struct {
	Policy string           `json:"policy"`
	Client string           `json:"client,omitempty"`
	All    bool             `json:"all,omitempty"`  // clients
	Hash   *bool            `json:"hash,omitempty"` // whether a client that reads as a hash is one
	Limits []ginlimit.Limit `json:"limits"`
	Until  time.Time        `json:"until"`
	Note   string           `json:"note,omitempty"`
}

// WrittenOf returns an override as files have it, but for its Hash.
func WrittenOf(o ginlimit.Override) Written {
	return Written{Policy: o.Policy, Client: o.Client, All: o.Client == "", Limits: o.Limits,
		Until: o.Until.Truncate(time.Second), Note: o.Note}
}

// String returns what the override says.
func (w Written) String() string {
	return OverrideText(ginlimit.Override{Limits: w.Limits, Until: w.Until, Note: w.Note})
}

func (w Written) compare(other Written) int {
	return cmp.Or(strings.Compare(w.Policy, other.Policy), strings.Compare(w.Client, other.Client))
}

// Whom returns the client of an override, as part of a sentence.
func Whom(client string) string {
	if client == "" {
		return "all clients"
	}
	return fmt.Sprintf("client %q", client)
}

// OfPolicy lists the overrides of a policy, or of all if it is "".
func (o *Operator) OfPolicy(ctx context.Context, policy string) ([]Listed, error) {
	all, err := o.Overrides(ctx)
	all = slices.DeleteFunc(all, func(v Listed) bool { return policy != "" && v.Policy != policy })
	return all, err
}

// File returns listed overrides in their order, as a file has them.
func (o *Operator) File(ctx context.Context, some ...Listed) ([]Written, error) {
	known, err := o.Policies(ctx)
	if err != nil {
		return nil, err
	}
	all, err := o.Read(some...)
	list := []Written{}
	for _, o := range all {
		w := WrittenOf(o)
		if ReadsAsHash(o.Client) {
			hash := isHash(o.Policy, known)
			w.Hash = &hash
		}
		list = append(list, w)
	}
	return list, err
}

// isHash reports whether clients of a policy that read as hashes are hashes in overrides: one that nobody serves may
// have had a secret.
func isHash(policy string, known []ginlimit.PolicyInfo) bool {
	other := func(p ginlimit.PolicyInfo) bool { return p.Name == policy && !HasSecret(p) }
	return !slices.ContainsFunc(known, other)
}

// Kinds of steps.
const (
	Adds    = "+"
	Changes = "~"
	Ends    = "-"
)

// Step is what a file does to one override.
type Step struct {
	Change string   `json:"change"` // Adds, Changes or Ends
	New    *Written `json:"new,omitempty"`
	Old    *Written `json:"old,omitempty"`
	entry  Entry
}

// Override returns the override that the step makes or ends, as Redis has it.
func (s Step) Override() ginlimit.Override { return s.entry.Override }

// Served returns the entries of policies that processes serve, and how many other entries each other policy has.
func (o *Operator) Served(ctx context.Context, entries []Entry) (served []Entry, left map[string]int, err error) {
	known, err := o.Policies(ctx)
	left = map[string]int{}
	for _, e := range entries {
		if slices.ContainsFunc(known, func(p ginlimit.PolicyInfo) bool { return p.Name == e.Policy }) {
			served = append(served, e)
		} else {
			left[e.Policy]++
		}
	}
	return served, left, err
}

// LeftOut says what of a file waits for processes that serve its policies. It shows their names by a function.
func LeftOut(left map[string]int, shown func(string) string) string {
	n, names := 0, []string{}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		n += left[name]
		names = append(names, shown(name))
	}
	return fmt.Sprintf("left out %s of policies that no process serves yet: %s", Plural(n, "override", "overrides"),
		strings.Join(names, ", "))
}

// Steps returns what entries of a file do, or every error in them. With prune, overrides that the file does not have
// end.
func (o *Operator) Steps(ctx context.Context, entries []Entry, prune bool) (steps []Step, err error) {
	want, err := o.fit(ctx, entries)
	if err != nil {
		return nil, err
	}
	have, err := o.have(ctx, want, prune)
	if err != nil {
		return nil, err
	}
	steps = []Step{}
	for _, e := range want {
		w := WrittenOf(e.Override)
		if w.Client = e.of.Key; e.hash != HashUnsaid {
			w.Hash = new(bool)
			*w.Hash = e.hash == IsHash
		}
		s := Step{Change: Adds, New: &w, entry: e}
		if old, is := have[idOf(e.Override)]; is {
			delete(have, idOf(e.Override))
			if slices.Equal(old.Limits, w.Limits) && old.Until.Equal(w.Until) && old.Note == w.Note {
				continue
			}
			s.Change, s.Old = Changes, &old
		}
		steps = append(steps, s)
	}
	for _, old := range slices.SortedFunc(maps.Values(have), Written.compare) {
		if prune {
			end := Entry{Override: ginlimit.Override{Policy: old.Policy, Client: old.Client}}
			steps = append(steps, Step{Change: Ends, Old: &old, entry: end})
		}
	}
	return steps, inFile(steps, o.Check(ctx, overridesOf(steps)...))
}

// id is what is one's own of an override.
type id struct{ policy, client string }

func idOf(o ginlimit.Override) id { return id{o.Policy, o.Client} }

// have returns the overrides in force that entries of a file may replace, or all.
func (o *Operator) have(ctx context.Context, want []Entry, all bool) (map[id]Written, error) {
	listed, err := o.Overrides(ctx)
	if err != nil {
		return nil, err
	}
	wanted := map[id]bool{}
	for _, e := range want {
		wanted[idOf(e.Override)] = true
	}
	isOther := func(v Listed) bool { return !all && !wanted[id{v.Policy, v.Client}] }
	read, err := o.Read(slices.DeleteFunc(listed, isOther)...)
	have := map[id]Written{}
	for _, h := range read {
		have[idOf(h)] = WrittenOf(h)
	}
	return have, err
}

// fit returns entries with clients as their policies know them, or every error in them.
func (o *Operator) fit(ctx context.Context, entries []Entry) (all []Entry, err error) {
	known, err := o.Policies(ctx)
	if err != nil {
		return nil, err
	}
	variants := map[string][]ginlimit.PolicyInfo{}
	for _, p := range known {
		variants[p.Name] = append(variants[p.Name], p)
	}
	var faults faults
	seen := map[id]bool{}
	for _, e := range entries {
		if len(variants[e.Policy]) == 0 {
			faults.add(e, e.line, "no process serves a policy %q", e.Policy)
			continue
		}
		of, _ := LastSeen(variants[e.Policy])
		if err := o.resolve(&e, of); err != nil {
			need := (*Fault)(nil)
			errors.As(err, &need)
			faults.add(e, e.line, "%w%s", err, o.Hints[need.Need])
			continue
		}
		if seen[idOf(e.Override)] {
			faults.add(e, e.line, "policy %q has %s twice", e.Policy, Whom(e.of.Key))
		}
		seen[idOf(e.Override)] = true
		all = append(all, e)
	}
	return all, faults.err()
}

// resolve gives an entry its client, as the policy knows it and as Redis has it. An error is a [Fault].
func (o *Operator) resolve(e *Entry, of ginlimit.PolicyInfo) (err error) {
	if e.all {
		return nil
	}
	if e.of, err = o.Client(of, e.Client, e.hash); err == nil {
		err = Overridable(of, e.of)
	}
	e.Client = o.Stored(of.Name, e.of)
	return err
}

// Take takes steps, in as many calls as they need: the ends of overrides first, for room. An error names the entries
// of the file. After an error of Redis some steps may have been taken.
func (o *Operator) Take(ctx context.Context, steps []Step) error {
	ends := func(s Step) bool { return s.Change == Ends }
	all := append(slices.DeleteFunc(slices.Clone(steps), func(s Step) bool { return !ends(s) }),
		slices.DeleteFunc(slices.Clone(steps), ends)...)
	for some := range slices.Chunk(all, MaxChanges) {
		if err := inFile(some, o.Change(ctx, overridesOf(some)...)); err != nil {
			return err
		}
	}
	return nil
}

func overridesOf(steps []Step) (all []ginlimit.Override) {
	for _, s := range steps {
		all = append(all, s.Override())
	}
	return all
}

// inFile returns an error of the overrides of steps with the entries of the file.
func inFile(steps []Step, err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var found faults
	for _, err := range joined.Unwrap() {
		var fault *ginlimit.OverrideError
		if !errors.As(err, &fault) {
			return err
		}
		e := steps[fault.Index].entry
		found.add(e, e.line, "%w", fault.Err)
	}
	return found.err()
}
