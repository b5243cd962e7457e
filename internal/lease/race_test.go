//go:build race

package lease

// raceDetector reports whether the tests run with the race detector, which makes a simulation ten
// times slower.
const raceDetector = true
