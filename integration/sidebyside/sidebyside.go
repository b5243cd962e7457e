// Package sidebyside has the messages between a test and the processes that it starts. It compiles
// with the library of this tree and with that of the commit before the rewrite, so it names nothing
// in which these differ.
package sidebyside

import (
	"net/http"
	"time"

	"github.com/ginlimit/ginlimit"
)

// Policy is what a command counts by.
type Policy struct {
	Prefix    string
	Secret    string
	Algorithm ginlimit.Algorithm // of all Limits but calendar quotas
	Name      string
	Unnamed   bool             // in the old version, where a policy without a name has that of its limits
	Limits    []ginlimit.Limit // none if there are only Slots; without algorithms
	Floor     int
	Slots     int
	Ban       [2]time.Duration // the first and the longest
	Lease     time.Duration    // makes the process trust its clock from the start
}

// Command is one thing that a process is told to do.
type Command struct {
	Op      string
	Policy  Policy
	Key     string
	N       int
	D       time.Duration
	ID      string // of a reservation or a slot that a later command settles or releases
	Callers int    // of an operation that many make at once
	Log     string // a file to which a load appends each Admission at once, as the process may be killed
	Seed    uint64
}

// Result is what both versions say of a decision.
type Result struct {
	Allowed    bool
	Granted    int
	Limit      ginlimit.Limit // without its algorithm
	Name       string
	Remaining  int
	RetryAfter time.Duration
	ResetAfter time.Duration
	Source     string
}

// ResultOf returns what both versions say of a decision.
func ResultOf(r ginlimit.Result) Result {
	l := r.Limit
	return Result{
		Allowed: r.Allowed, Granted: r.Granted, Name: r.Name, Remaining: r.Remaining,
		Limit: ginlimit.Limit{
			Rate: l.Rate, Period: l.Period, Burst: l.Burst, Calendar: l.Calendar, InFlight: l.InFlight,
		},
		RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter, Source: r.Source.String(),
	}
}

// Reply is what came of a command.
type Reply struct {
	Result Result
	Error  string

	Status int // of a response
	Header http.Header
	Body   string

	Limits     []ginlimit.Limit // of a plan
	Calls      int              // that a load made
	Leased     int              // of these, decided from a lease
	Net        int              // tokens that were taken and not given back
	Most       int64            // slots that were held at once, in all processes
	Admissions []Admission
}

// Admission is tokens that were granted at some time between two, in nanoseconds since 1970.
type Admission struct {
	From, To int64
	Tokens   int
}
