package main

import (
	"fmt"
	"math"
	"slices"
)

// spread is the median of some rounds, and what a quarter of them is below and above.
type spread struct{ median, low, high float64 }

// spreadOf passes over values that are not finite.
func spreadOf(values []float64) spread {
	v := slices.DeleteFunc(slices.Clone(values), func(f float64) bool { return math.IsNaN(f) || math.IsInf(f, 0) })
	if len(v) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(v)
	return spread{quantile(v, 0.5), quantile(v, 0.25), quantile(v, 0.75)}
}

// quantile interpolates between sorted values.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// text prints the spread with so many digits after the point, or nothing if there were no values.
func (s spread) text(digits int) string {
	if math.IsNaN(s.median) {
		return ""
	}
	return fmt.Sprintf("%.*f [%.*f … %.*f]", digits, s.median, digits, s.low, digits, s.high)
}

// middle prints the median alone.
func (s spread) middle(digits int) string {
	if math.IsNaN(s.median) {
		return ""
	}
	return fmt.Sprintf("%.*f", digits, s.median)
}
