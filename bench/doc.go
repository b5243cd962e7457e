// Package bench measures what the scripts of ginlimit cost Redis; command table compares it with other limiters.
//
// Its README says how to run the benchmarks. It also tests the notes for those who come from another limiter.
package bench
