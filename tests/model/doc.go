// Package model has the protocols of leases and of slots as states and steps, each small enough to be held beside the
// code, and a search that visits every state that can be reached. It is what the proof in package lease and guarantee 9
// say, for a reader who would rather have a machine look for the run that they overlooked.
//
// [Leases] is one token bucket of which processes take tokens ahead. A process dies at any moment, and may do each of
// its steps at any later time with what it knew before: that is a pause, and a busy machine. Calls and answers are lost
// or late, a process' clock loses ticks as the proof allows, and a failover returns to any earlier moment or to
// nothing. In every state, what was admitted in any time t is at most burst + rate × t, and what the failovers have
// lost: the more of what the two buckets lack. [Slots] are the slots of one key: numbered attempts and reports, each
// early, late or lost, processes that die, and a Redis that loses its memory. In every state Redis counts no fewer
// slots of a process than it holds, unless guarantee 9 excuses that, and more only while something is on its way.
//
// Each model can make [Mistake]s, and the tests want each to be found, with the shortest way to it: see the log of
// go test -v -run Mistake. LateForgets was one of the code.
//
// # Why a search of small numbers says something
//
// Nothing in either protocol looks at how large a number is, only at which of two is larger and whether there is room.
// The bounds are in the rows of the tests, which print how many states there are; -full has more, for make nightly.
// States that differ by the order of their processes are one, since no step asks which process it is. Slots counts the
// numbers of attempts from the oldest that anybody knows, since only differences matter. What others hold reaches a
// process only as a denial, so one process is searched with more on its way than three.
//
// # How it is tied to the code
//
// TestRealLeasesAreThoseOfTheModel and TestRealSlotsAreThoseOfTheModel run the packages lease and inflight and the
// scripts, in simulated time: what they do must be a step of the model, and both must then be in the same state.
//
// # What is not in them
//
// A decision counts at the moment at which its clock was read. A tick is Redis' millisecond, so a span may be off by
// one. Windows, several limits, floors, queues, bans and resets are left to the tests of these.
package model
