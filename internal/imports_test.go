package internal_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImportsGoOneWay holds the direction of the imports: from the root to the engine, from there to
// the stores and rules, and from these to bucket. A package that is not listed here has no place
// yet. Tests alone import the testkit.
func TestImportsGoOneWay(t *testing.T) {
	t.Parallel()
	const module = "github.com/ginlimit/ginlimit/internal/"
	allowed := map[string][]string{ // in addition to the standard library
		"bucket":     {},
		"calendar":   {},
		"clientkey":  {},
		"memory":     {module + "bucket"},
		"denycache":  {module + "bucket", module + "table"},
		"lease":      {module + "bucket", module + "table"},
		"fifo":       {},
		"gintrust":   {module + "clientkey", "github.com/gin-gonic/gin"},
		"httpfields": {},
		"inflight":   {module + "bucket"},
		"goroutine":  {},
		"throttle":   {},
		"table":      {},
		"dispatch":   {module + "bucket", module + "goroutine"},
		"rules":      {module + "bucket", module + "calendar"},
		"wire":       {module + "bucket", module + "dispatch", module + "inflight"},
		"redisstore": {module + "bucket", module + "dispatch", module + "goroutine", module + "inflight",
			module + "throttle", module + "wire", "github.com/redis/go-redis/v9"},
		"engine": {module + "bucket", module + "clientkey", module + "denycache",
			module + "dispatch", module + "fifo", module + "goroutine", module + "inflight", module + "lease",
			module + "memory", module + "redisstore", module + "replicas", module + "rules", module + "wire",
			"github.com/redis/go-redis/v9"},
		"replicas":  {module + "bucket", module + "goroutine", module + "inflight", module + "memory"},
		"overrides": {module + "clientkey", module + "upkeep", module + "wire"},
		"published": {module + "upkeep", module + "wire"},
		"upkeep":    {module + "dispatch", module + "goroutine"},
		"traits":    {},
		"readahead": {},
		"plancache": {module + "dispatch", module + "goroutine", module + "redisstore", module + "throttle"},
		"testkit": {module + "redisstore", module + "wire", module + "engine", module + "memory", module + "bucket",
			"github.com/ginlimit/ginlimit", "github.com/alicebob/miniredis/v2", "github.com/gin-gonic/gin",
			"github.com/redis/go-redis/v9", "github.com/stretchr/testify/assert",
			"github.com/stretchr/testify/require"},
	}
	forbidden := map[string][]string{ // of the standard library
		"":       {"net/http"}, // but for gintrust, and for the testkit, which sends requests
		"bucket": {"time", "math/rand", "math/rand/v2"},
	}
	require.NoError(t, filepath.WalkDir(".", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return err
		}
		name := filepath.ToSlash(filepath.Dir(file))
		others, ok := allowed[name]
		require.True(t, ok, "internal/%s is not in this test", name)
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range parsed.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") {
				require.Contains(t, others, path, file)
			}
			if name != "testkit" && name != "gintrust" {
				require.NotContains(t, append(forbidden[""], forbidden[name]...), path, file)
			}
		}
		return nil
	}))
}
