package testkit

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// Kinds are the kinds of buckets that algorithms use.
var Kinds = map[ginlimit.Algorithm]bucket.Kind{
	ginlimit.TokenBucket: bucket.Token, ginlimit.FixedWindow: bucket.FixedWindow,
	ginlimit.SlidingWindow: bucket.SlidingWindow,
}

// scripts are the scripts that limiters send.
var scripts = sync.OnceValues(func() (*wire.Scripts, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(filepath.Join(root, "script.lua"))
	return wire.New(string(token)), err
})

// Scripts returns every script that limiters send.
func Scripts(t testing.TB) *wire.Scripts {
	t.Helper()
	all, err := scripts()
	require.NoError(t, err)
	return all
}

// ScriptSource returns the source of a script by its number.
func ScriptSource(t testing.TB, number int) string {
	t.Helper()
	return Scripts(t)[number]().Source
}

// ScriptOfLimit returns the script of a decision under one limit, and what it is told of the limit.
func ScriptOfLimit(t testing.TB, a ginlimit.Algorithm, l ginlimit.Limit) (source string, args []any) {
	t.Helper()
	b, ok := bucket.New(Kinds[a], "", int64(l.Rate), Burst(l), l.Period.Milliseconds())
	require.True(t, ok)
	return ScriptSource(t, wire.For(bucket.NewLayout([]bucket.Bucket{b}))), b.Args[:]
}
