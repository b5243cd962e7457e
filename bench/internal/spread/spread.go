// Package spread has the middle of some measurements, and how far they are apart.
package spread

import (
	"fmt"
	"math"
	"slices"
)

// Spread is the median of some rounds, and what a quarter of them is below and above.
type Spread struct{ Median, Low, High float64 }

// Of passes over values that are not finite.
func Of(values []float64) Spread {
	v := slices.DeleteFunc(slices.Clone(values), func(f float64) bool { return math.IsNaN(f) || math.IsInf(f, 0) })
	if len(v) == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(v)
	return Spread{Quantile(v, 0.5), Quantile(v, 0.25), Quantile(v, 0.75)}
}

// Quantile interpolates between sorted values.
func Quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// Text prints the spread with so many digits after the point, or nothing if there were no values.
func (s Spread) Text(digits int) string {
	if math.IsNaN(s.Median) {
		return ""
	}
	return fmt.Sprintf("%.*f [%.*f … %.*f]", digits, s.Median, digits, s.Low, digits, s.High)
}

// Middle prints the median alone.
func (s Spread) Middle(digits int) string {
	if math.IsNaN(s.Median) {
		return ""
	}
	return fmt.Sprintf("%.*f", digits, s.Median)
}
