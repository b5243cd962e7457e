//go:build race

package ginlimit_test

// raceDetector reports whether the tests run with the race detector, which makes a simulation ten times slower.
const raceDetector = true

// raceShare is what part of its steps a trace has: races show in the first of them.
const raceShare = 4
