// Package frontier shows what the designs of distributed limiters trade: calls of the store against exactness. All decide
// on the same traffic, each by the rule that its authors have published; ginlimit runs its real code on simulated time.
//
//	go test ./frontier -timeout 1h -args -all
//
// prints the table and draws the picture of docs/articles/exactness.md. Without -all it tests a cell.
package frontier
