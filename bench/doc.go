// Package bench measures ginlimit beside other limiters: the same redis-server, the same run.
//
// It has benchmarks alone; its README says how to run them.
package bench
