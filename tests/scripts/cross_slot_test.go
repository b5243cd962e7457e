package scripts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// each has each of some keys decided on for itself.
func (s *scriptKeys) each(t *testing.T, n, once int, keys []string, charges ...any) ([]int64, error) {
	return s.call(t, "each", n, once, keys, charges...)
}

// across is each by the script for keys in several slots. miniredis does not know its first line, so it is a comment.
func (s *scriptKeys) across(t *testing.T, n, once int, keys []string, charges ...any) ([]int64, error) {
	alone := s.source
	defer func() { s.source = alone }()
	s.source = "--" + strings.TrimPrefix(s.ofNode, "#!")
	for _, key := range keys[1:] {
		charges = append(charges[:len(charges):len(charges)], key)
	}
	return s.each(t, n, once, keys[:1], charges...)
}

// TestEachKeyOfANodeThatMayBeUsed is charged. The reply is -1 of one that is on another node by
// now, or not for this user.
func TestEachKeyOfANodeThatMayBeUsed(t *testing.T) {
	t.Parallel()
	keys, twins := []string{"a", "b", "c"}, []string{"A", "B", "C"}
	for kind, s := range faultKinds(t) {
		for refused := range keys {
			for _, commands := range [][]string{{"GET", "LRANGE", "PTTL"}, {"PTTL"},
				append([]string{"PEXPIRE"}, needMemory...)} {
				what := fmt.Sprintf("%s: %v of %s", kind, commands, keys[refused])
				require.NoError(t, s.rdb.Del(t.Context(), append(twins, keys...)...).Err())
				for _, call := range []func() ([]int64, error){
					func() ([]int64, error) { return s.across(t, 1, 1, keys) },
					func() ([]int64, error) { return s.each(t, 1, 1, twins) },
				} {
					reply, err := call()
					require.NoError(t, err, what)
					require.Equal(t, []int64{0, 0, 0}, firsts(reply, 3), what)
				}
				before := s.state(t, keys[refused])
				s.refuse(keys[refused], commands...)
				got, err := s.across(t, 2, 0, keys, 1, 2, 3)
				s.noFault()
				require.NoError(t, err, what)
				require.EqualValues(t, -1, firsts(got, 3)[refused], what)
				require.Equal(t, before, s.state(t, keys[refused]), what)
				want, err := s.each(t, 2, 0, twins, 1, 2, 3)
				require.NoError(t, err, what)
				size := len(want) / 3
				for i, key := range keys {
					if i != refused {
						require.Equal(t, want[size*i:size*(i+1)], got[size*i:size*(i+1)], what)
						require.Equal(t, s.state(t, twins[i]), s.state(t, key), what)
					}
				}
			}
		}
	}
}

// firsts returns the first integer in a reply for each of n keys.
func firsts(reply []int64, n int) (all []int64) {
	for of := range slices.Chunk(reply, len(reply)/n) {
		all = append(all, of[0])
	}
	return all
}
