package engine

import (
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// Failure is what happens if the store does not decide.
type Failure uint8

const (
	FailLocal  Failure = iota // this process decides
	FailOpen                  // the request is allowed
	FailClosed                // there is no decision
)

// Source is where a decision was made.
type Source uint8

const (
	FromStore  Source = iota // by the store: Redis, or this process if it has no Redis
	FromCache                // by the deny cache
	FromLease                // by tokens taken ahead
	FromLocal                // in this process, without the store
	FromOpen                 // nowhere: the store did not decide, and the request is allowed
	FromStatic               // nowhere: nothing is counted, the set prohibits, or a queue has no place
)

// Subject is a client under a set of rules.
type Subject struct {
	Prefix string // of the client's key; "" is none
	Client string
	Tenant bucket.Tenant // of the client, if tenants share its limits; see TenantName
	Set    *rules.Set    // the current one; waiting for another calendar period renews it
}

// Ask is what a request wants of a subject, and how it may be decided on.
type Ask struct {
	Subject
	N       int64         // tokens; 0 only looks, and is allowed unless the set prohibits
	UpTo    bool          // fewer tokens will do, and no denial bans the client
	Leases  bool          // leased tokens may serve, and tokens be taken ahead
	Failure Failure       // what happens if the store does not decide
	Settles bool          // what is taken may be given back
	Recalls bool          // what is taken late is given back if nobody has decided, as for a caller that has left
	Report  rules.Report  // which statuses are wanted
	Queue   Queue         // how the request waits for what it lacks of this Ask
	Waiting *atomic.Int64 // counts the requests that do; may be nil
	scope   rules.Scope   // all of the set, but for a look that leaves slots out
	looks   looks         // if it takes nothing
	again   bool          // it has waited and tried before, and its tokens are counted as wanted
	turn    time.Duration // until this process is no longer known to wait; 0 if the request does not
}

// looks is what an Ask looks at.
type looks uint8

const (
	nothing    looks = iota // it takes
	limits                  // what one token would meet
	everything              // also if a limit prohibits
)

// Queue says how a request waits for what it lacks of an Ask. The zero Queue does not wait.
type Queue struct {
	Length int           // how many requests of the Ask's client wait in this process; 0 in a dry run, which does not wait
	Wait   time.Duration // for how long
}

// Endless is the Length of the queue of a Wait, the only Ask of its request: it has no length, and lasts as long as the
// context unless it has a Wait, through bans, and through an outage in which nobody else may decide. It ends with an
// error, not with a denial.
const Endless = -1

// Request asks for the tokens of all its Asks, and a slot of each that takes one, or for nothing.
type Request struct {
	Asks    []Ask
	Answers []Answer      // one for each Ask
	Trials  int           // how many of the last Asks decide apart, each by itself: they wait for nothing and deny nothing
	Waited  time.Duration // before, of the time that the decision has
	Waits   func()        // called each time the request begins to wait in a line; may be nil

	// Since is when a request of one Ask came: in a line it stands before those that came later. Zero is now.
	Since time.Time
	// Leaves reports that a request of one Ask no longer waits: before each try, and when the key was changed. Then
	// its error is ErrLeft. It may be nil.
	Leaves func() bool
}

// Answer is a decision on an Ask.
type Answer struct {
	rules.Verdict
	Decided   bool // else another Ask of the same request was denied first
	QueueFull bool // the request is denied because the Ask's queue has no place for it
	Source    Source
	Statuses  []rules.Status // as the Ask wants them; the memory is the caller's
	Hash      uint64         // of the key; 0 if no bucket was asked
	Waited    time.Duration  // for tokens or a slot of this Ask
	Failed    error          // why there is no decision on a trial
	Err       error          // why the store did not decide, last; then it may still have the Ask's set
	attempt   int64          // that holds a slot; 0 is none
	share     *rules.Set     // by which this process decided; nil if it did not
	place     int64          // of this process among those that wait for the slot that it lacks; 0 if not known
	receipt   *receipt       // of what was taken; nil if nothing is to be given back
}

// op returns the operation that takes the tokens of an Ask or none, or as many as there are. It only looks
// for 0 tokens, and for more than there ever are.
func (a *Ask) op() bucket.Op {
	switch n := a.N; {
	case a.looks != nothing || n == 0:
		return bucket.Peek(1)
	case a.UpTo:
		return bucket.Op{Verb: bucket.Take, Charges: min(n, a.Set.Burst), N: 1}
	case n > a.Set.Burst:
		return bucket.Peek(n)
	}
	return bucket.Op{Verb: bucket.Take, Charges: 1, N: a.N}
}

// whichBan returns which denials of an Ask ban the client. While a request waits none does, and with a queue
// none for want of a slot, also in a dry run, which does not wait.
func (a *Ask) whichBan() bucket.Bans {
	switch {
	case !a.Set.Bans() || a.UpTo || a.waits():
		return bucket.NoBans
	case a.queues() || a.Queue.Wait > 0:
		return bucket.LimitBans
	}
	return bucket.AllBans
}

// attempts reports whether a decision on an Ask takes a slot.
func (a *Ask) attempts() bool { return a.scope == rules.All && a.Set.Slots() >= 0 }

// slots returns how many slots an Ask's key has, if it attempts to take one.
func (a *Ask) slots() int64 { return a.Set.Buckets(rules.All)[a.Set.Slots()].Capacity }

// queues reports whether a request waits for what it lacks of an Ask.
func (a *Ask) queues() bool { return a.Queue.Length != 0 }

// waits reports whether the request tries again if this Ask is denied. Then the denial lasts no longer than need be.
func (a *Ask) waits() bool { return a.turn > 0 }

// reset prepares an answer for another decision.
func (a *Answer) reset() { *a = Answer{Statuses: a.Statuses[:0], Waited: a.Waited, Err: a.Err} }

// Status returns the status of a resource, or nil if there is none.
func (a *Answer) Status(resource int) *rules.Status {
	for i := range a.Statuses {
		if resource >= 0 && int(a.Statuses[i].Resource) == resource {
			return &a.Statuses[i]
		}
	}
	return nil
}

// HasSlot reports whether the decision took a slot.
func (a *Answer) HasSlot() bool { return a.attempt > 0 }

// answerStatic answers an Ask that needs no bucket.
func (a *Answer) answerStatic(ask *Ask) {
	n := ask.N
	if ask.looks != nothing {
		n = 0
	}
	a.Verdict, _ = ask.Set.Static(rules.All, n)
	if a.Decided, a.Source = true, FromStatic; !a.Allowed && ask.Report != rules.ReportNone {
		a.Statuses = append(a.Statuses, rules.Status{Resource: rules.Prohibited, Denies: true})
	}
}

// judge fills in the answer to an Ask by a set: its own or its share. It judges charges of n tokens in the states
// found, if one fits.
func (e *Engine) judge(ask *Ask, a *Answer, set *rules.Set, found []bucket.State, n, charges int64, fits bool) {
	a.Verdict, a.Statuses = set.Judge(found, n, charges, fits, ask.Report, a.Statuses[:0])
	if a.Decided = true; !fits && a.Source == FromStore && set.Bans() {
		e.bans.note(a.Hash, set.Banned(found))
	}
	if ask.N == 0 { // it is allowed, whatever is left
		a.Allowed, a.RetryAfter = true, 0
	}
}

// judgeDenied fills in the answer to a call that the deny cache denies.
func (e *Engine) judgeDenied(c *dispatch.Call, ask *Ask, a *Answer) {
	a.Source = FromCache
	e.judge(ask, a, ask.Set, c.States, c.Op.N, 0, false)
}

// denies reports whether an answer denies.
func denies(a Answer) bool { return a.Decided && !a.Allowed }
