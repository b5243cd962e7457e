// Package bench measures ginlimit beside other limiters: the same redis-server, the same run.
//
// Its README says how to run the benchmarks. It also tests the notes for those who come from another limiter.
package bench
