//go:build !race

package plancache

// raceShare is what part of its steps a long test has: races show in the first of them.
const raceShare = 1
