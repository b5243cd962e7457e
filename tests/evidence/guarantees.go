package main

// guarantee is what users are promised. Its number is its place.
type guarantee struct {
	title  string
	says   string // Markdown
	breaks string // what would break it
	tried  []attempt
}

// attempt is what has tried to break a guarantee: tests, which fail if it is broken, and how much they try.
type attempt struct {
	what  string
	tests []string // folder and name
	runs  []string // whose figures tell how much
	table *table   // whose rows do
}

// table is one of a test's rows.
type table struct{ unit, file, name string }

var guarantees = []guarantee{
	{"The limit",
		"While Redis decides, no more than burst + rate × t are admitted in any time t, by any number of processes; by a " +
			"fixed window, no more than its limit in each window. In an outage each process admits [its " +
			"share](operations.md#faults) more, by default, and one that starts then the whole limit.",
		"Two decisions on one level, lost charges, clocks that differ, tokens that two processes hold.",
		[]attempt{
			{"any order of events, faults and clocks", []string{"tests/simulation TestSimulation"},
				[]string{"simulation"}, nil},
			{"processes at once, on a disturbed Redis", []string{"tests/integration TestConcurrentCallsAreLinearizable",
				"tests/limits TestEightProcessesAdmitExactlyTheBurst", "tests/limits TestEightProcessesAdmitTheRate"},
				[]string{"histories"}, nil},
			{"short windows", []string{"tests/limits TestShortWindowsNeverAdmitMore"}, nil, nil},
			{"leases, with deaths, pauses and failovers", []string{"tests/model TestLeasesAdmitNoMore",
				"tests/model TestRealLeasesAreThoseOfTheModel"},
				[]string{"lease-states"}, nil},
			{"mistakes that the model must find", []string{"tests/model TestMistakesOfLeasesAreFound"}, nil,
				&table{"mistakes", "tests/model/leases_test.go", "TestMistakesOfLeasesAreFound"}},
			{"traffic under which other designs leak", []string{"bench/frontier TestTheLimitIsKeptAndUsed"}, nil, nil},
		}},
	{"All or none",
		"A denied request consumes nothing. Of several limits, and of all policies of `AllOf`, all are charged or none; what " +
			"several servers took is given back.",
		"A script that writes before it decides; a server that answers after another has denied.",
		[]attempt{
			{"policies on a cluster, disturbed", []string{"tests/integration TestSeveralPoliciesOnAClusterAreLinearizable",
				"tests/integration TestMistakesOfSeveralPoliciesAreFound"}, []string{"cluster-histories"}, nil},
			{"random steps, beside a model", []string{"tests/limits TestSeveralPoliciesEqualTheModel",
				"tests/limits TestSeveralPoliciesOnServersEqualTheModel",
				"tests/limits TestTraceEqualsModelOnMiniredis"}, nil, nil},
			{"requests that one policy denies", []string{"tests/web TestAllOrNone",
				"tests/limits TestNobodyFindsAChargeThatDoesNotStay"}, nil, nil},
			{"callers that leave", []string{"internal/engine TestWhatIsTakenForACallerThatHasLeftIsGivenBack"}, nil, nil},
		}},
	{"Waiting helps",
		"A client that waits `Retry-After` is admitted if nobody else took the token.",
		"Rounding down; a remembered denial that outlasts the token.",
		[]attempt{
			{"waits of exactly that long", []string{"tests/limits TestWaitingRetryAfterAdmits",
				"tests/limits TestAClientThatWaitsIsAdmitted"}, nil,
				&table{"kinds of limits and leases", "tests/limits/lease_test.go", "TestAClientThatWaitsIsAdmitted"}},
			{"remembered denials, beside the bucket", []string{
				"tests/limits TestDenyCacheDeniesNoClientThatRedisWouldAdmit",
				"internal/denycache TestDeniesForAsLongAsRedisWould"}, nil, nil},
			{"the rounding of fields", []string{"internal/httpfields TestSecondsAreRoundedUp",
				"tests/web TestRetryAfterIsNeverBeforeT"}, nil, nil},
		}},
	{"Exact numbers",
		"`X-RateLimit-Remaining` is exact.",
		"A number from before another's charge, rounding, an answer for another caller.",
		[]attempt{
			{"answers that one order of calls must explain", []string{
				"tests/integration TestConcurrentCallsAreLinearizable"}, []string{"histories"}, nil},
			{"random steps, beside fractions", []string{"tests/limits TestTraceEqualsModelOnMiniredis",
				"tests/limits TestWindowTraceEqualsModelOnRedis", "tests/limits TestLargestWindowsStayExact"}, nil, nil},
			{"calls that travel together", []string{"internal/dispatch TestCallsOfAGroupAreAnsweredInOrder"}, nil, nil},
		}},
	{"In time",
		"A decision takes no longer than the timeout and a tenth of it, whatever Redis does.",
		"A pool, a queue or a context that blocks; a node that holds up others.",
		[]attempt{
			{"any fault, in simulated time", []string{"tests/simulation TestSimulation",
				"internal/engine TestARequestHasOneDeadline"}, []string{"simulation"}, nil},
			{"[faults of a real Redis](operations.md#faults), under load", []string{"tests/integration TestFaults"},
				[]string{"faults"}, nil},
			{"a frozen server or node", []string{"tests/faults TestTimeoutBoundsEveryDecision",
				"tests/faults TestFrozenNodeHoldsUpItsOwnKeys"}, nil, nil},
			{"contexts that hang or panic", []string{
				"internal/dispatch TestAContextThatHangsOrPanicsHurtsItsOwnCaller"}, nil, nil},
		}},
	{"Redis is back",
		"Within a second of its return Redis decides again, and no stale charge is sent.",
		"A breaker that stays open; a client that sends a charge again.",
		[]attempt{
			{"outages, slow servers, restarts", []string{"tests/simulation TestSimulation", "tests/integration TestFaults"},
				[]string{"simulation", "faults"}, nil},
			{"a server that does anything", []string{"internal/dispatch TestWhateverTheServerDoes"},
				[]string{"dispatcher"}, nil},
			{"a charge on its way to a frozen Redis", []string{"tests/faults TestNoChargeIsSentTwice"}, nil, nil},
		}},
	{"Bounded",
		"Memory is bounded, whatever keys clients invent, and no script holds Redis up.",
		"A key without expiry, a table without bound, a script that removes thousands of entries.",
		[]attempt{
			{"invented clients", []string{"tests/limits TestLocalMemoryIsBounded", "tests/limits TestEveryWindowExpires",
				"internal/denycache TestAFullSetForgetsTheOldest", "internal/dispatch TestFullQueue"}, nil, nil},
			{"keys left in Redis", []string{"tests/simulation TestSimulation"},
				[]string{"simulation"}, nil},
			{"thousands of dead tenants and processes", []string{"tests/scripts TestACallRemovesFewTenants",
				"tests/scripts TestACallRemovesFewProcesses", "tests/scripts TestLongKeysAreFreedInTheBackground"}, nil, nil},
			{"everything at once, in `make nightly`", []string{"tests/integration TestSoak"}, nil,
				&table{"bounds", "tests/integration/soak_test.go", "soakBounds"}},
		}},
	{"One bucket for each client",
		"No two clients share a bucket by accident, and none chooses its bucket by forging a header.",
		"Separators in keys, spellings of an address, trusted headers.",
		[]attempt{
			{"keys and tuples that read alike", []string{"tests/limits TestKeysDoNotMeet",
				"internal/clientkey TestJoinTellsTuplesApart", "internal/clientkey FuzzKey"}, []string{"fuzz"}, nil},
			{"spellings of an address", []string{"internal/clientkey TestKeysOfAddresses",
				"internal/clientkey FuzzAddress"}, nil,
				&table{"spellings", "internal/clientkey/key_test.go", "TestKeysOfAddresses"}},
			{"forged headers and paths", []string{"tests/web TestForgedHeadersChooseNoBucket",
				"tests/web TestALineOfItsOwnChoosesNoBucket", "tests/web TestSpellingsOfAPathChooseNoBucket"}, nil, nil},
		}},
	{"In flight",
		"Never more than n requests are in flight under `InFlight(n)`, at any level, and a process that dies frees its " +
			"slots within 10 s. While Redis is late this holds for each process; [together](guide.md#requests-in-flight) " +
			"they may pass n for a moment.",
		"A report that is lost, late or repeated; a process that dies; a Redis that forgets.",
		[]attempt{
			{"late and lost reports, deaths, lost memory", []string{"tests/model TestSlotsAreNeverTooMany",
				"tests/model TestRealSlotsAreThoseOfTheModel"}, []string{"slot-states"}, nil},
			{"mistakes that the model must find", []string{"tests/model TestMistakesOfSlotsAreFound"}, nil, nil},
			{"any order of events and faults", []string{"tests/simulation TestSlotSimulation"},
				[]string{"slot-simulation"}, nil},
			{"a killed process, a late Redis, every level", []string{"tests/limits TestKilledProcessFreesItsSlots",
				"tests/limits TestSlotsAreNeverPassed", "tests/limits TestEachProcessPassesNoSlotsWhileRedisIsLate",
				"tests/web TestInFlightAtEveryLevel"}, nil, nil},
		}},
	{"Fair shares",
		"No tenant of a shared limit is denied because of another that asks for more than its share, beyond what [fair " +
			"shares](fair.md#what-it-does-not-do) says, if the [burst](fair.md#choose-the-burst) suffices.",
		"Zeal that pays, a weight that does not count, an outage.",
		[]attempt{
			{"any zeal, cost and weight, over outages", []string{"tests/fair TestSimulation",
				"tests/fair TestProcessSimulation"}, []string{"tenants"}, nil},
			{"random steps, beside a model", []string{"tests/limits TestTenantsEqualTheModelOnRedis",
				"tests/limits TestTenantsEqualTheModelOnMiniredis"}, nil, nil},
			{"evicted keys, others without shares", []string{
				"tests/limits TestSharesSurviveWhatOthersDoToTheirKeys"}, nil, nil},
		}},
}
