//go:build race

package plancache

// raceShare is the fraction of a long test's steps to run: races show early.
const raceShare = 4
