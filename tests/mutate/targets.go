package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// Tests of the public API: none of them starts a server. They are chosen so that most mutants of a
// script are seen in a second.
var (
	tokens = stage{"tests/limits",
		[]string{"-test.run", "TestTraceEqualsModelOnMiniredis/seed_[01]$", "-test.parallel", "1"}}
	fixed = stage{"tests/limits",
		[]string{"-test.run", "TestWindowTraceEqualsModelOnMiniredis/fixed.*seed_[01]$", "-test.parallel", "1"}}
	sliding = stage{"tests/limits",
		[]string{"-test.run", "TestWindowTraceEqualsModelOnMiniredis/sliding.*seed_[01]$", "-test.parallel", "1"}}
	scripts = stage{"tests/scripts",
		[]string{"-test.run",
			"TestForeignKeys|TestLevelsOf|TestDebtEnds|TestTokensGivenBack|TestABlock|TestEveryWayToCall|" +
				"TestScripts[WU]|TestEachKey"}}
	windows = stage{"tests/scripts", []string{"-test.run", "TestScriptsOfWindows", "-test.parallel", "1"}}
	across  = stage{"tests/scripts",
		[]string{"-test.run", "TestEachKeyOfANode|TestEachBucketForItself", "-test.parallel", "1"}}
	settled = stage{"tests/limits .",
		[]string{"-test.run", "TestSettle|TestReturned|ExamplePerCalendar", "-test.skip", ".*/local|.*/.*/local"}}
	kinds = stage{"tests/limits",
		[]string{"-test.run", "TestCalendarTrace", "-test.parallel", "1"}}
	traces = stage{"tests/limits",
		[]string{"-test.run", "OnMiniredis|ReturnedTokensEqualModel|StaysExact|StayExact", "-test.parallel", "1"}}
	rules = stage{"tests/limits tests/scripts tests/web .",
		[]string{"-test.run",
			"Bucket|Foreign|Reset|AllowN|AllowUpTo|Cost|Peek|Refund|Block|Limits|Drain|Window|Log|" +
				"Taken|Return|Identit|Settle|Floor|TestCalendarIn",
			"-test.skip",
			"Bounded|TraceEqualsModel|ReturnedTokensEqualModel|Exact|LogsAre|DoubleBurst|Logged|Faults|" +
				".*/local|.*/.*/local"}}
	simulation = stage{"tests/simulation", []string{"-test.run", "^TestSimulation$", "-seeds", "20"}}
	guarded    = stage{"tests/scripts",
		[]string{"-test.run", "TestGuardsEqualTheModel|TestABanThatIsNotKept", "-test.parallel", "1"}}
	guards = stage{"tests/scripts tests/limits tests/web",
		[]string{"-test.run", "TestSlots|TestLateAttempt|Ban",
			"-test.skip", ".*/local|.*/.*/local|Redis"}}
	slots     = stage{"tests/simulation", []string{"-test.run", "^TestSlotSimulation$", "-seeds", "20"}}
	overrides = stage{"tests/limits", []string{"-test.run", "Overrid|WhoWaits|PoliciesArePublished|Looks|Hangs|Operators|OfAClient|Idle|Late|EachLog|Dropped"}}

	plans = stage{"tests/limits tests/faults",
		[]string{"-test.run", "Plan|Invalidation", "-test.skip", "^Example"}}

	// All that two features do together, and what a web server sees: the engine's own tests.
	pairs = stage{"tests/limits tests/web", []string{"-test.skip", "TraceEqualsModel|Bounded"}}

	leaseScripts = stage{"tests/scripts", []string{"-test.run", "Lease|Held|EachBucketIsReadOnce"}}
	leases       = stage{"tests/limits", []string{"-test.run", "Lease|ByHand"}}

	sharesInProcess = stage{"tests/limits", []string{"-test.run", "TestTenants.*InProcess|Share|Tenant",
		"-test.skip", "Miniredis|.*/(server|in turn|outage)"}}
	shares = stage{"tests/scripts tests/limits", []string{"-test.run", "Share|Tenant",
		"-test.skip", "InProcess|.*/local"}}

	bucketTests   = stage{"internal/bucket", nil}
	ruleTests     = stage{"internal/rules", nil}
	keyTests      = stage{"internal/clientkey", nil}
	denyTests     = stage{"internal/denycache", nil}
	memoryTests   = stage{"internal/memory", nil}
	dispatchTests = stage{"internal/dispatch", nil}
	leaseTests    = stage{"internal/lease", nil}
	calendarTests = stage{"internal/calendar", nil}
	fieldTests    = stage{"internal/httpfields", nil}
	engineTests   = stage{"internal/engine", nil}
	fifoTests     = stage{"internal/fifo", nil}
	inflightTests = stage{"internal/inflight", nil}
	storeTests    = stage{"internal/redisstore", nil}
	wireTests     = stage{"internal/wire", nil}
	planTests     = stage{"internal/plancache", nil}

	upkeepTests  = stage{"internal/upkeep", nil}
	publishTests = stage{"internal/published", nil}
	replicaTests = stage{"internal/replicas", nil}
)

// testsOf are the tests of the Go files of each folder of internal/, whether they see a mutant of it in turn.
var testsOf = map[string][]stage{
	"bucket":     {bucketTests, memoryTests, denyTests, ruleTests, dispatchTests, scripts, simulation},
	"calendar":   {calendarTests, kinds, rules},
	"clientkey":  {keyTests},
	"denycache":  {denyTests},
	"dispatch":   {dispatchTests, shares},
	"engine":     {engineTests, settled, rules, guards, pairs},
	"fifo":       {fifoTests},
	"httpfields": {fieldTests},
	"inflight":   {inflightTests, slots},
	"lease":      {leaseTests, leases},
	"memory":     {memoryTests, scripts, sharesInProcess},
	"overrides":  {upkeepTests, overrides},
	"plancache":  {planTests, plans},
	"published":  {publishTests, upkeepTests, overrides},
	"redisstore": {storeTests, planTests, plans},
	"replicas":   {replicaTests, engineTests},
	"rules":      {ruleTests, engineTests, leases, settled, simulation, rules, guards, pairs},
	"upkeep":     {upkeepTests, overrides},
	"wire":       {wireTests, engineTests, shares},
}

// testsOfScripts are the tests of each script.
var testsOfScripts = map[string][]stage{
	"script.lua":                         bucketScripts(tokens),
	"internal/wire/lua/kind/token.lua":   bucketScripts(tokens),
	"internal/wire/lua/fast/several.lua": bucketScripts(tokens, guards),
	"internal/wire/lua/fast/fixed.lua":   bucketScripts(fixed, windows),
	"internal/wire/lua/kind/fixed.lua":   bucketScripts(fixed, windows),
	"internal/wire/lua/fast/sliding.lua": bucketScripts(sliding, windows),
	"internal/wire/lua/kind/sliding.lua": bucketScripts(sliding, windows),
	"internal/wire/lua/decide.lua":       bucketScripts(tokens, fixed, sliding, windows),
	"internal/wire/lua/guards.lua":       {guarded, guards, slots},
	"internal/wire/lua/slots.lua":        {guarded, guards, slots},
	"internal/wire/lua/report.lua":       {guarded, guards, slots},
	"internal/wire/lua/lease.lua":        {leaseScripts, leases},
	"internal/wire/lua/cross_slot.lua":   {across, simulation},
	"internal/wire/lua/plan.lua":         {storeTests, planTests, plans},
	"internal/wire/lua/override.lua":     {overrides},
	"internal/wire/lua/publish.lua":      {overrides},
	"internal/wire/lua/tenants.lua":      {shares},
	"internal/wire/lua/fast/tenants.lua": {shares},
}

// bucketScripts are the tests of a script that decides on buckets, after those that see most of its mutants.
func bucketScripts(first ...stage) []stage {
	return append(first, scripts, settled, simulation, kinds, rules, traces)
}

// targetsIn returns all files that are broken, in order.
func targetsIn(root string) (all []target, err error) {
	for script, stages := range testsOfScripts {
		all = append(all, target{script, stages})
	}
	for folder, stages := range testsOf {
		files, err := filepath.Glob(filepath.Join(root, "internal", folder, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if name := filepath.Base(file); !strings.HasSuffix(name, "_test.go") {
				all = append(all, target{"internal/" + folder + "/" + name, stages})
			}
		}
	}
	slices.SortFunc(all, func(a, b target) int { return strings.Compare(a.file, b.file) })
	return all, nil
}
