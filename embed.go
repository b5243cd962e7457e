package ginlimit

import (
	_ "embed"
	"fmt"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// The parts of the scripts.
var (
	//go:embed lua/prelude.lua
	preludeSource string
	//go:embed lua/cross_slot.lua
	crossSlotSource string
	//go:embed script.lua
	tokenFastSource string
	//go:embed lua/fast/fixed.lua
	fixedFastSource string
	//go:embed lua/fast/sliding.lua
	slidingFastSource string
	//go:embed lua/fast/several.lua
	severalFastSource string
	//go:embed lua/kind/token.lua
	tokenKindSource string
	//go:embed lua/kind/fixed.lua
	fixedKindSource string
	//go:embed lua/kind/sliding.lua
	slidingKindSource string
	//go:embed lua/decide.lua
	decideSource string
	//go:embed lua/slots.lua
	slotsSource string
	//go:embed lua/guards.lua
	guardsSource string
	//go:embed lua/fast/tenants.lua
	tenantsFastSource string
	//go:embed lua/tenants.lua
	tenantsSource string
	//go:embed lua/lease.lua
	leaseSource string
	//go:embed lua/report.lua
	reportSource string
	//go:embed lua/plan.lua
	planSource string // needs no prelude
)

// recipe is what a script for limits is made of.
type recipe struct {
	fast    string // decides in line on one key, or on each of many
	several bool   // decides in line on several keys together, too
	kinds   []kind // of limits that it knows
}

// kind is a kind of limits in scripts: by its name in arguments, or token.
type kind struct{ name, source string }

// recipes are the scripts for limits. Each is made a second time, with a ban or slots.
func recipes() [redisstore.Limits]recipe {
	token, fixed := kind{"token", tokenKindSource}, kind{"fixed", fixedKindSource}
	sliding := kind{"sliding", slidingKindSource}
	return [redisstore.Limits]recipe{
		redisstore.Tokens:         {fast: tokenFastSource, several: true, kinds: []kind{token}},
		redisstore.Fixed:          {fast: fixedFastSource, kinds: []kind{fixed}},
		redisstore.Sliding:        {fast: slidingFastSource, kinds: []kind{sliding}},
		redisstore.TokensCalendar: {several: true, kinds: []kind{token, fixed}},
		redisstore.Mixed:          {kinds: []kind{token, fixed, sliding}},
	}
}

// sources returns all scripts.
func sources() (s redisstore.Sources) {
	for i, r := range recipes() {
		s.Server[i] = r.compose(false)
		s.Server[redisstore.WithBanOrSlots+i] = r.compose(true)
		if i < redisstore.Single {
			s.Node[i] = crossSlotSource + constants() + r.fast
		}
	}
	s.Server[redisstore.BanOrSlots] = preludeSource + constants() + found + slotsSource + guardsSource
	s.Server[redisstore.Tenants] = tenants()
	s.Server[redisstore.Lease] = leases()
	s.Server[redisstore.Report] = preludeSource + constants() + slotsSource + reportSource
	return s
}

// found declares the values that a fast path has read.
const found = "local found = {}\n"

// compose returns the script for limits alone, or for limits together with a ban or slots.
func (r recipe) compose(guarded bool) string {
	begin, decide := preludeSource+constants(), r.fast+r.modules()+decideSource
	switch {
	case !guarded && r.several:
		return begin + "local guarded = false\n" + severalFastSource + decide
	case !guarded:
		return begin + decide
	case !r.several:
		begin += found
	default: // a function whose names are parameters: upvalues would cost Redis time
		const names = "call, try, floor, ceil, format, match, exact, grace, life, found)\n"
		begin += found + "local function several(KEYS, ARGV, guarded, " + names + severalFastSource + "end\n" +
			"local reply = several(KEYS, ARGV, true, " + names + "if reply then return reply end\n"
		decide = "local reply, charges = several(KEYS, ARGV, false, " + names +
			"if reply then return reply, charges end\n" + decide
	}
	return begin + slotsSource + "local function decide(KEYS, ARGV)\n" + decide + "end\n" + guardsSource
}

// leases returns the script that takes tokens ahead.
func leases() string { return preludeSource + constants() + decideTokens() + leaseSource }

// tenants returns the script for a token bucket that tenants share. What a take does not need is not made for it.
func tenants() string {
	return preludeSource + constants() + tenantConstants() +
		"local change\nif ARGV[1] ~= 'take' then\n" + decideTokens() + tenantsSource + "end\n" + tenantsFastSource
}

// decideTokens returns the function that decides on token buckets.
func decideTokens() string {
	tokens := recipe{kinds: []kind{{"token", tokenKindSource}}}
	return tokens.modules() + "local function decide(KEYS, ARGV)\n" + decideSource + "end\n"
}

// tenantConstants are constants of the script for tenants alone.
func tenantConstants() string {
	return fmt.Sprintf("local parts, maxFinish, slack, minGone, maxGone, maxWalk = %d, %d, %d, %d, %d, %d\n",
		bucket.Parts, int64(bucket.MaxFinish), bucket.Slack, bucket.MinGone, bucket.MaxGone, bucket.MaxWalk)
}

// modules returns the kinds of limits: a table of functions, each of which makes the module of one.
func (r recipe) modules() string {
	text := "local kind = {\n"
	for _, k := range r.kinds {
		text += k.name + " = function()\n" + k.source + "end,\n"
	}
	return text + "}\n"
}

// constants returns the values that Go shares with the scripts, as locals. prelude.lua says what
// they are.
func constants() string {
	return fmt.Sprintf("local exact, wrap, grace, life, whole = %d, %d, %d, '%d', %d\n",
		int64(bucket.MaxUnits), int64(bucket.MaxLogged)+1, bucket.Grace, inflight.Life.Milliseconds(),
		redisstore.Whole) +
		fmt.Sprintf("local withRecords, noBans, limitBans = %d, %d, %d\n",
			bucket.WithRecords, bucket.NoBans, bucket.LimitBans) +
		fmt.Sprintf("local spans, maxTimes, ever, maxRewritten = %d, %d, %d, %d\n",
			bucket.RecordSpans, bucket.MaxRecordTimes, int64(bucket.MaxAge), bucket.MaxRewritten)
}
