//go:build !race

package testkit

// RaceDetector reports whether the tests run with the race detector, which makes a simulation ten
// times slower.
const RaceDetector = false

// RaceShare is the divisor of a trace's length: with the race detector a trace is shorter, as
// races show in its first steps.
const RaceShare = 1
