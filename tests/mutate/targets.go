package main

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
			"TestForeignKeys|TestEachHas|TestLevelsOf|TestRepliesOf|TestBucketsThat|TestDebtEnds|" +
				"TestTokensGivenBack|TestBucketsCharged|TestABlock|TestScripts[WU]|TestEachKey"}}
	windows = stage{"tests/scripts", []string{"-test.run", "TestScriptsOfWindows", "-test.parallel", "1"}}
	across  = stage{"tests/scripts",
		[]string{"-test.run", "TestEachKeyOfANode|TestEachBucketForItself", "-test.parallel", "1"}}
	settled = stage{"tests/limits .",
		[]string{"-test.run", "TestSettle|TestKindsOfLimits|ExamplePerCalendar", "-test.skip", ".*/local|.*/.*/local"}}
	kinds = stage{"tests/limits",
		[]string{"-test.run", "TestCalendarTrace|TestLimitsOfDifferentAlgorithms", "-test.parallel", "1"}}
	traces = stage{"tests/limits",
		[]string{"-test.run", "OnMiniredis|ReturnedTokensEqualModel|StaysExact|StayExact", "-test.parallel", "1"}}
	rules = stage{"tests/limits tests/scripts tests/limits/pairs tests/web .",
		[]string{"-test.run",
			"Bucket|Foreign|Reset|AllowN|AllowUpTo|Cost|Peek|Refund|Block|Limits|Drain|Window|Log|" +
				"Taken|Return|Identit|Settle|Floor|TestCalendarIn",
			"-test.skip",
			"Bounded|TraceEqualsModel|ReturnedTokensEqualModel|Exact|LogsAre|DoubleBurst|Logged|Faults|" +
				".*/local|.*/.*/local"}}
	simulation = stage{"tests/simulation", []string{"-test.run", "^TestSimulation$", "-seeds", "20"}}
	guarded    = stage{"tests/scripts",
		[]string{"-test.run", "TestGuardsEqualTheModel|TestABanThatIsNotKept", "-test.parallel", "1"}}
	guards = stage{"tests/scripts tests/limits tests/limits/pairs tests/web",
		[]string{"-test.run", "TestMessagesAboutSlots|TestSlots|TestLateAttempt|Ban",
			"-test.skip", ".*/local|.*/.*/local|Redis"}}
	slots = stage{"tests/simulation", []string{"-test.run", "^TestSlotSimulation$", "-seeds", "20"}}
	plans = stage{"tests/plans tests/limits/pairs tests/faults",
		[]string{"-test.run", "Plan|Invalidation", "-test.skip", "ManyPlans|OldPlanOfRedis|^Example"}}

	// All that two features do together, and what a web server sees: the engine's own tests.
	pairs = stage{"tests/limits/pairs tests/web", nil}

	leaseScripts = stage{"tests/scripts", []string{"-test.run", "Lease|Held|EachBucketIsReadOnce"}}
	leases       = stage{"tests/limits tests/limits/pairs", []string{"-test.run", "Lease|ByHand"}}

	sharesInProcess = stage{"tests/limits tests/limits/pairs", []string{"-test.run", "TestTenants.*InProcess|Share|Tenant",
		"-test.skip", "Miniredis|.*/(server|in turn|outage)"}}
	shares = stage{"tests/scripts tests/limits tests/limits/pairs", []string{"-test.run", "Share|Tenant",
		"-test.skip", "InProcess|.*/local"}}

	bucketTests   = stage{"internal/bucket", nil}
	ruleTests     = stage{"internal/rules", nil}
	receiptTests  = stage{"internal/receipt", nil}
	keyTests      = stage{"internal/clientkey", nil}
	denyTests     = stage{"internal/denycache", nil}
	memoryTests   = stage{"internal/memory", nil}
	dispatchTests = stage{"internal/dispatch", []string{"-test.skip", "^TestSimulation$"}}
	dispatchSim   = stage{"internal/dispatch", []string{"-test.run", "^TestSimulation$", "-seeds", "60"}}
	leaseTests    = stage{"internal/lease", []string{"-test.skip", "^TestSimulation$"}}
	leaseSim      = stage{"internal/lease", []string{"-test.run", "^TestSimulation$", "-seeds", "150"}}
	calendarTests = stage{"internal/calendar", nil}
	fieldTests    = stage{"internal/httpfields", nil}
	engineTests   = stage{"internal/engine", nil}
	fifoTests     = stage{"internal/fifo", nil}
	inflightTests = stage{"internal/inflight", nil}
	storeTests    = stage{"internal/redisstore", nil}
	wireTests     = stage{"internal/wire", nil}
	planTests     = stage{"internal/plancache", []string{"-test.skip", "^TestKeptPlans"}}
)

var targets = []target{
	{"internal/bucket/bucket.go", []stage{bucketTests, memoryTests, denyTests}},
	{"internal/bucket/kind.go", []stage{bucketTests, memoryTests, denyTests}},
	{"internal/bucket/level.go", []stage{bucketTests, memoryTests, denyTests}},
	{"internal/bucket/token.go", []stage{bucketTests, memoryTests, denyTests}},
	{"internal/bucket/window.go", []stage{bucketTests, memoryTests, denyTests}},
	{"internal/bucket/calendar.go", []stage{bucketTests, memoryTests, denyTests}},
	{"internal/bucket/share.go", []stage{bucketTests, memoryTests, denyTests}},
	{"internal/bucket/slots.go", []stage{bucketTests, memoryTests}},
	{"internal/bucket/ban.go", []stage{bucketTests, memoryTests}},
	{"internal/bucket/tenants.go", []stage{bucketTests, memoryTests, denyTests, ruleTests, sharesInProcess}},
	{"internal/bucket/op.go", []stage{bucketTests, dispatchTests, memoryTests, scripts}},
	{"script.lua", []stage{tokens, scripts, settled, simulation, kinds, rules, traces}},
	{"internal/denycache/cache.go", []stage{denyTests}},
	{"internal/wire/lua/guards.lua", []stage{guarded, guards, slots}},
	{"internal/wire/lua/slots.lua", []stage{guarded, guards, slots}},
	{"internal/wire/lua/report.lua", []stage{guarded, guards, slots}},
	{"internal/inflight/counts.go", []stage{inflightTests, slots}},
	{"internal/inflight/reporter.go", []stage{inflightTests, slots}},
	{"internal/inflight/update.go", []stage{inflightTests, slots}},
	{"internal/wire/lua/fast/several.lua", []stage{tokens, guards, scripts, settled, kinds, simulation, rules, traces}},
	{"internal/calendar/rule.go", []stage{calendarTests}},
	{"internal/rules/set.go", []stage{ruleTests, settled, rules, guards, pairs}},
	{"internal/rules/periods.go", []stage{ruleTests, settled, rules, guards, pairs}},
	{"internal/rules/verdict.go", []stage{ruleTests, settled, rules, guards, pairs}},
	{"internal/receipt/receipt.go", []stage{receiptTests, settled, rules, guards, pairs}},
	{"internal/engine/take.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/denial.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/several.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/lease.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/local.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/change.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/settle.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/replicas.go", []stage{engineTests}},
	{"internal/engine/slots.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/queue.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/queue_deny.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/wait.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/bans.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/stats.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/engine/engine.go", []stage{engineTests, settled, rules, guards, pairs}},
	{"internal/clientkey/key.go", []stage{keyTests}},
	{"internal/clientkey/address.go", []stage{keyTests}},
	{"internal/clientkey/networks.go", []stage{keyTests}},
	{"internal/httpfields/fields.go", []stage{fieldTests}},
	{"internal/httpfields/list.go", []stage{fieldTests}},
	{"internal/httpfields/name.go", []stage{fieldTests}},
	{"internal/httpfields/numbers.go", []stage{fieldTests}},
	{"internal/httpfields/problem.go", []stage{fieldTests}},
	{"internal/fifo/queue.go", []stage{fifoTests}},
	{"internal/fifo/places.go", []stage{fifoTests}},
	{"internal/lease/lease.go", []stage{leaseTests, leaseSim}},
	{"internal/lease/cache.go", []stage{leaseTests, leaseSim, leases}},
	{"internal/lease/trip.go", []stage{leaseTests, leaseSim}},
	{"internal/lease/part.go", []stage{leaseTests, leases}},
	{"internal/lease/unused.go", []stage{leaseTests, leaseSim, leases}},
	{"internal/rules/lease.go", []stage{ruleTests, leaseSim, leases}},
	{"internal/bucket/ahead.go", []stage{bucketTests, denyTests, ruleTests, leaseSim}},
	{"internal/wire/lua/lease.lua", []stage{leaseScripts, leases, simulation}},
	{"internal/dispatch/batch.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/borrowed.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/bounded.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/breaker.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/call.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/caller.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/deadline.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/dispatch.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/inline.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/lifetime.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/prober.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/queue.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/roundtrip.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/send.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/slots.go", []stage{dispatchTests, dispatchSim}},
	{"internal/dispatch/tenants.go", []stage{dispatchTests, shares}},
	{"internal/dispatch/stats.go", []stage{dispatchTests, dispatchSim}},
	{"internal/wire/lua/kind/token.lua", []stage{tokens, scripts, settled, simulation, kinds, rules, traces}},
	{"internal/wire/lua/fast/fixed.lua", []stage{fixed, scripts, windows, settled, simulation, kinds, rules, traces}},
	{"internal/wire/lua/kind/fixed.lua", []stage{fixed, scripts, windows, settled, simulation, kinds, rules, traces}},
	{"internal/wire/lua/fast/sliding.lua", []stage{sliding, scripts, windows, settled, simulation, kinds, rules, traces}},
	{"internal/wire/lua/kind/sliding.lua", []stage{sliding, scripts, windows, settled, simulation, kinds, rules, traces}},
	{"internal/wire/lua/decide.lua", []stage{tokens, fixed, sliding, scripts, windows, settled, simulation, kinds, rules,
		traces}},
	{"internal/wire/lua/cross_slot.lua", []stage{across, simulation}},
	{"internal/wire/lua/plan.lua", []stage{storeTests, planTests, plans}},
	{"internal/plancache/cache.go", []stage{planTests, plans}},
	{"internal/plancache/flight.go", []stage{planTests, plans}},
	{"internal/plancache/plan.go", []stage{planTests, plans}},
	{"internal/plancache/redis.go", []stage{planTests, plans}},
	{"internal/plancache/source.go", []stage{planTests, plans}},
	{"internal/redisstore/answers.go", []stage{storeTests, planTests, plans}},
	{"internal/wire/reply.go", []stage{wireTests}},
	{"internal/wire/join.go", []stage{wireTests, engineTests}},
	{"internal/wire/tenants.go", []stage{wireTests, shares}},
	{"internal/wire/lua/tenants.lua", []stage{shares}},
	{"internal/wire/lua/fast/tenants.lua", []stage{shares}},
	{"internal/wire/script.go", []stage{wireTests}},
	{"internal/memory/store.go", []stage{memoryTests}},
	{"internal/memory/token.go", []stage{memoryTests}},
	{"internal/memory/kind.go", []stage{memoryTests}},
	{"internal/memory/record.go", []stage{memoryTests, scripts}},
	{"internal/memory/ban.go", []stage{memoryTests}},
	{"internal/memory/window.go", []stage{memoryTests}},
	{"internal/memory/tenants.go", []stage{memoryTests, sharesInProcess}},
	{"internal/memory/log.go", []stage{memoryTests}},
}
