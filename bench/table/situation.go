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
	callers  int
	perHour  int
	burst    int
	refused  bool
	distance time.Duration // added to the round trip to Redis
	tool     *tool         // sends requests over HTTP, if there is one
	longer   int           // how many times as long as the others its rounds are
}

// A hundred a minute, or of a client that all ask for, 10,000 a second; and a burst that nobody uses up.
const perHour, hotPerHour, plenty = 6000, 36_000_000, 1_000_000_000

// situations returns all, in the order of the table.
func situations() []situation {
	var all []situation
	for _, s := range []situation{
		{name: "clients=1000", label: "1,000 clients", clients: 1000, perHour: perHour, burst: plenty},
		{name: "clients=1000000", label: "1,000,000 clients", clients: 1_000_000, perHour: perHour, burst: plenty},
		{name: "hot", label: "one client", clients: 1, perHour: hotPerHour, burst: plenty},
		{name: "refused", label: "all refused", clients: 1000, perHour: 1, burst: 1, refused: true},
		{name: "distance=1ms", label: "1 ms to Redis", clients: 1000, perHour: perHour,
			burst: plenty, distance: time.Millisecond},
		{name: "distance=5ms", label: "5 ms to Redis", clients: 1000, perHour: perHour,
			burst: plenty, distance: 5 * time.Millisecond},
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
			}
			all = append(all, s)
		}
	}
	for _, t := range tools() {
		all = append(all, situation{name: "http/" + t.name, label: "HTTP with " + t.name,
			perHour: hotPerHour, burst: plenty, tool: t, longer: 1})
	}
	return all
}

// takesPart says whether a library has a place in the situation.
func (s situation) takesPart(l peers.Library) bool {
	if l.Role == peers.Variant { // leases are for keys that many ask for
		return s.clients <= 1
	}
	return l.Role != peers.Bare || s.distance == 0 // without a limiter there is no way to Redis
}
