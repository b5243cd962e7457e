// Package wire is what goes to Redis and comes back: the scripts, their arguments and their replies.
//
// It owns the files in lua/, the recipes by which they are composed, and the names of keys. Only
// this package knows the order of a script's arguments. It knows no connection.
package wire

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/inflight"
)

//go:embed lua
var parts embed.FS

// Scripts are all scripts. Each is composed when it is used first; after that it does not change.
type Scripts [Count]func() *Script

// Script is how a script is called.
type Script struct {
	Source   string
	bySHA    [2]any // the command, and the script as its first argument
	bySource [2]any
}

// New returns the scripts. token is the fast path of the token bucket, script.lua.
func New(token string) *Scripts {
	var all Scripts
	for number := range all {
		all[number] = sync.OnceValue(func() *Script {
			source := compose(token, number)
			sum := sha1.Sum([]byte(source)) // computed here, not in Redis
			return &Script{source, [2]any{"evalsha", hex.EncodeToString(sum[:])}, [2]any{"eval", source}}
		})
	}
	return &all
}

// part returns a part of the scripts, by its name in lua/.
func part(name string) string {
	text, err := parts.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // the names are in this file
	}
	return string(text)
}

// recipe is what a script for limits is made of.
type recipe struct {
	fast    string   // decides in line on one key, or on each of many
	several bool     // decides in line on several keys together, too
	kinds   []string // of limits that it knows: their names in arguments, or token
}

// recipes are the scripts for limits. Each is made a second time, with a ban or slots.
var recipes = [Limits]recipe{
	Tokens:         {several: true, kinds: []string{"token"}}, // fast: script.lua
	Fixed:          {fast: "fast/fixed", kinds: []string{"fixed"}},
	Sliding:        {fast: "fast/sliding", kinds: []string{"sliding"}},
	TokensCalendar: {several: true, kinds: []string{"token", "fixed"}},
	Mixed:          {kinds: bucket.Modules()},
}

// crossSlot is the first line of a script whose keys may be in several hash slots. Only its first key is declared.
const crossSlot = "#!lua flags=allow-cross-slot-keys\n"

// found declares the values that a fast path has read.
const found = "local found = {}\n"

// compose returns a script. token is script.lua.
func compose(token string, number int) string {
	begin := part("prelude") + constants()
	switch number {
	case BanOrSlots:
		return begin + found + "local guarded = true\n" + part("fast/several") + part("slots") + part("guards")
	case Report:
		return begin + part("slots") + part("report")
	case ReportNode:
		return crossSlot + begin + part("slots") + part("report")
	case Lease:
		return begin + decideTokens() + part("lease")
	case Tenants: // what a take does not need is not made for it
		return begin + tenantConstants() + "local change\nif ARGV[1] ~= 'take' then\n" + decideTokens() +
			part("tenants") + "end\n" + part("fast/tenants")
	}
	r, fast := recipes[number%Limits], ""
	switch {
	case number%Limits == Tokens:
		fast = token
	case r.fast != "":
		fast = part(r.fast)
	}
	if number >= Node {
		return part("cross_slot") + constants() + fast
	}
	return begin + r.compose(fast, number >= WithBanOrSlots)
}

// compose returns the script for limits alone, or for limits together with a ban or slots, after its
// beginning.
func (r *recipe) compose(fast string, guarded bool) string {
	decide := fast + modules(r.kinds) + part("decide")
	switch {
	case !guarded && r.several:
		return "local guarded = false\n" + part("fast/several") + decide
	case !guarded:
		return decide
	}
	several := ""
	if r.several { // a function whose names are parameters: upvalues would cost Redis time
		const names = "call, try, floor, ceil, format, match, exact, grace, life, expiry, found)\n"
		several = "local function several(KEYS, ARGV, guarded, " + names + part("fast/several") + "end\n" +
			"local reply = several(KEYS, ARGV, true, " + names + "if reply then return reply end\n"
		decide = "local reply, charges = several(KEYS, ARGV, false, " + names +
			"if reply then return reply, charges end\n" + decide
	}
	return found + several + part("slots") + decider(decide) + part("guards")
}

// decider returns the function that decides on limits.
func decider(body string) string { return "local function decide(KEYS, ARGV)\n" + body + "end\n" }

// decideTokens returns the function that decides on token buckets.
func decideTokens() string { return modules([]string{"token"}) + decider(part("decide")) }

// modules returns the kinds of limits: a table of functions, each of which makes the module of one.
func modules(kinds []string) string {
	text := "local kind = {\n"
	for _, kind := range kinds {
		text += kind + " = function()\n" + part("kind/"+kind) + "end,\n"
	}
	return text + "}\n"
}

// tenantConstants are constants of the script for tenants alone.
func tenantConstants() string {
	// The parts are a float in Lua 5.4 too: times a level they are more than an integer holds.
	return fmt.Sprintf("local parts, maxFinish, slack, minGone, maxGone, maxWalk = %d.0, %d, %d, %d, %d, %d\n",
		bucket.Parts, int64(bucket.MaxFinish), bucket.Slack, bucket.MinGone, bucket.MaxGone, bucket.MaxWalk)
}

// constants returns the values that Go shares with the scripts, as locals. prelude.lua says what
// they are.
func constants() string {
	return fmt.Sprintf("local exact, wrap, grace, life, whole = %d, %d, %d, '%d', %d\n",
		int64(bucket.MaxUnits), int64(bucket.MaxLogged)+1, bucket.Grace, inflight.Life.Milliseconds(), Whole) +
		fmt.Sprintf("local withRecords, noBans, limitBans = %d, %d, %d\n",
			bucket.WithRecords, bucket.NoBans, bucket.LimitBans) +
		fmt.Sprintf("local spans, maxTimes, ever, maxRewritten = %d, %d, %d, %d\n",
			bucket.RecordSpans, bucket.MaxRecordTimes, int64(bucket.MaxAge), bucket.MaxRewritten)
}
