package main

import (
	"math"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
	"github.com/ginlimit/ginlimit/bench/internal/spread"
)

// results are the rounds of one situation.
type results struct {
	situation situation
	libraries []peers.Library
	rounds    map[string][]Round // of each library by its name, in their order
}

// figure is one of a round's, the less the better.
type figure func(Round) float64

func timeOf(r Round) float64        { return r.Time }
func cpuOf(r Round) float64         { return r.ProcessCPU + r.RedisCPU }
func redisCPUOf(r Round) float64    { return r.RedisCPU }
func p50Of(r Round) float64         { return r.P50 }
func p99Of(r Round) float64         { return r.P99 }
func p999Of(r Round) float64        { return r.P999 }
func allocationsOf(r Round) float64 { return r.Allocations }
func wrongOf(r Round) float64       { return r.Wrong }

func newResults(s situation, all []*contestant, rounds []Round) results {
	r := results{situation: s, rounds: map[string][]Round{}}
	for _, c := range all {
		r.libraries = append(r.libraries, c.library)
	}
	for _, round := range rounds {
		r.rounds[round.Library] = append(r.rounds[round.Library], round)
	}
	return r
}

// each returns a figure of every round of a library.
func (r results) each(library string, f figure) []float64 {
	var values []float64
	for _, round := range r.rounds[library] {
		values = append(values, f(round))
	}
	return values
}

func (r results) spread(library string, f figure) spread.Spread { return spread.Of(r.each(library, f)) }

// maxWrong is the share of wrong answers above which a library is not the best peer: an error is no decision.
const maxWrong = 0.01

// bestPeer returns the peer with the least median of a figure, or "" if there is none.
func (r results) bestPeer(f figure) string {
	best, least := "", math.Inf(1)
	for _, l := range r.libraries {
		if l.Role != peers.Peer || r.spread(l.Name, wrongOf).Median > maxWrong {
			continue
		}
		if m := r.spread(l.Name, f).Median; m < least {
			best, least = l.Name, m
		}
	}
	return best
}

// bare returns the name of Gin without a limiter.
func (r results) bare() string {
	for _, l := range r.libraries {
		if l.Role == peers.Bare {
			return l.Name
		}
	}
	return ""
}

// ratio compares two libraries within each round.
func (r results) ratio(above, below string, f figure) spread.Spread {
	a, b := r.each(above, f), r.each(below, f)
	var ratios []float64
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, a[i]/b[i])
	}
	return spread.Of(ratios)
}

// added returns, of each round, what a library takes more than Gin without a limiter.
func (r results) added(library string, f figure) []float64 {
	with, without := r.each(library, f), r.each(r.bare(), f)
	var added []float64
	for i := range min(len(with), len(without)) {
		added = append(added, with[i]-without[i])
	}
	return added
}

// addedRatio compares what two libraries add, in the rounds in which the second added anything.
func (r results) addedRatio(above, below string, f figure) spread.Spread {
	a, b := r.added(above, f), r.added(below, f)
	var ratios []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			ratios = append(ratios, a[i]/b[i])
		}
	}
	return spread.Of(ratios)
}
