package upkeep_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/upkeep"
)

// TestLimitersOfAClientAndPrefixShare, until the last one leaves.
func TestLimitersOfAClientAndPrefixShare(t *testing.T) {
	t.Parallel()
	var r upkeep.Registry[*int]
	ended := map[*int]int{}
	join := func(client any, prefix string) (*int, func()) {
		return r.Join(client, prefix, func() *int { return new(int) }, func(v *int) { ended[v]++ })
	}
	type wrapper struct{ of any }
	type incomparable struct{ _ []func() }
	one, other := new(string), new(string)
	first, leave := join(one, "p")
	same, leaveSame := join(one, "p")
	require.Same(t, first, same)
	for name, of := range map[string]struct {
		client any
		prefix string
	}{
		"another client": {other, "p"}, "another prefix": {one, ""}, "a wrapper": {wrapper{one}, "p"},
		"no client": {nil, "p"}, "incomparable": {incomparable{}, "p"}, "incomparable in it": {wrapper{incomparable{}}, "p"},
	} {
		value, leave := join(of.client, of.prefix)
		require.NotSame(t, first, value, name)
		leave()
		require.Equal(t, 1, ended[value], name)
	}
	wrapped, _ := join(wrapper{one}, "p")
	again, _ := join(wrapper{one}, "p")
	require.Same(t, wrapped, again)
	own, _ := join(incomparable{}, "p")
	another, _ := join(incomparable{}, "p")
	require.NotSame(t, own, another)
	leave()
	leave()
	require.Zero(t, ended[first], "once")
	leaveSame()
	require.Equal(t, 1, ended[first])
	next, _ := join(one, "p")
	require.NotSame(t, first, next)
}
