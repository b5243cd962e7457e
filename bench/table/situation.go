package main

import (
	"fmt"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
)

// situation is what all libraries go through.
type situation struct {
	name     string // what -only matches
	label    string // in the table
	clients  int
	callers  int // that ask again at once
	rate     int // of requests per second that come at random times, if there are no callers
	limit    peers.Limit
	denied   bool
	distance time.Duration // added to the round trip to Redis
	tool     *tool         // sends requests over HTTP, if there is one
	longer   int           // how many times as long as the others its rounds are

	neighbour bool // something else in the process collects garbage all the time
}

// plenty is a burst that nobody uses up.
const plenty = 1_000_000_000

// The limits. Tokens are leased no faster than they flow back to the limit, so hot has a rate that nobody asks for.
var (
	perMinute = peers.Limit{Rate: 100, Period: time.Minute, Burst: plenty}
	hot       = peers.Limit{Rate: 10_000_000, Period: time.Second, Burst: plenty}
	oneAnHour = peers.Limit{Rate: 1, Period: time.Hour, Burst: 1}
)

// situations returns all, in the order of the table.
func situations() []situation {
	var all []situation
	for _, s := range []situation{
		{name: "clients=1000", label: "1,000 clients", clients: 1000, limit: perMinute},
		{name: "clients=1000000", label: "1,000,000 clients", clients: 1_000_000, limit: perMinute},
		{name: "hot", label: "one client", clients: 1, limit: hot},
		{name: "denied", label: "all denied", clients: 1000, limit: oneAnHour, denied: true},
		{name: "distance=1ms", label: "1 ms to Redis", clients: 1000, limit: perMinute, distance: time.Millisecond},
		{name: "distance=5ms", label: "5 ms to Redis", clients: 1000, limit: perMinute, distance: 5 * time.Millisecond},
	} {
		for _, callers := range []int{1, 16, 64, 512} {
			s, base := s, s
			s.name = fmt.Sprintf("%s/callers=%d", base.name, callers)
			s.label = fmt.Sprintf("%s, callers: %d", base.label, callers)
			s.callers, s.longer = callers, 1
			switch {
			case s.distance > 0 && callers == 1:
				s.longer = 4 // a hundred decisions at least, for p99
			case s.distance > 0:
				s.longer = 2
			case callers == 1:
				s.longer = 4 // its time depends on the core that the system gives Redis for a while
			}
			all = append(all, s)
		}
	}
	for _, neighbour := range []bool{false, true} {
		for _, rate := range []int{500, 2000, 8000} {
			s := situation{
				name: fmt.Sprintf("stream/rate=%d", rate), label: fmt.Sprintf("%d/s", rate),
				clients: 1000, limit: perMinute, rate: rate, longer: 8, neighbour: neighbour,
			}
			if neighbour {
				s.name, s.label = s.name+"/garbage", s.label+", beside garbage"
			}
			all = append(all, s)
		}
	}
	for _, t := range tools() {
		all = append(all, situation{name: "http/" + t.name, label: "HTTP with " + t.name,
			limit: hot, tool: t, longer: 1})
	}
	return all
}

// takesPart says whether a library has a place in the situation.
func (s situation) takesPart(l peers.Library) bool {
	if l.Role == peers.Variant { // leases are for keys that many ask for
		return s.clients <= 1
	}
	return l.Role != peers.Bare || s.distance == 0 && s.rate == 0 // without a limiter there is no way to Redis
}
