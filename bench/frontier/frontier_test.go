package frontier

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

var all = flag.Bool("all", false, "all cells for ten seconds; prints a table, and writes the picture ../frontier.svg")

// lives are how long leases last.
var lives = []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond}

// kept returns what a bucket with leases keeps of its burst for what processes hold: what comes back in two lives, and
// at most half.
func kept(life time.Duration) int { return min(limit/2, int(2*life.Seconds()*limit)) }

// TestTheLimitIsKeptAndUsed wants ginlimit, with leases and without, to admit no more than the limit in any cell, and
// all of it but for what leases keep.
func TestTheLimitIsKeptAndUsed(t *testing.T) {
	tested, length := cells(), 10*time.Second
	if !*all {
		tested, length = []cell{{2, moves, bursts}}, 1500*time.Millisecond
	}
	measured, promises, order := map[string]map[cell]figures{}, map[string]promise{}, []string{}
	add := func(name string, p promise, c cell, o outcome, requests []request, kept int) figures {
		if measured[name] == nil {
			measured[name], promises[name], order = map[cell]figures{}, p, append(order, name)
		}
		measured[name][c] = p.figuresOf(o, requests, kept)
		t.Logf("%s: %s: %+.3f", c, name, measured[name][c])
		return measured[name][c]
	}
	for _, c := range tested {
		requests := c.traffic(length, 1)
		for _, d := range designs() {
			add(d.name, d.promise, c, d.decide(c.processes, requests), requests, 0)
		}
		f := add("ginlimit", bucket, c, ours(t, c, requests), requests, 0)
		assert.Zero(t, f.over, c)
		assert.Greater(t, f.used, 0.99, c)
		for _, life := range lives {
			f := add(fmt.Sprintf("ginlimit, leases of %v", life), bucket, c,
				ours(t, c, requests, ginlimit.WithLease(life)), requests, kept(life))
			assert.Zero(t, f.over, c)
			assert.Greater(t, f.given, 0.99-life.Seconds()/4, c) // at the limit processes pause
		}
	}
	if *all {
		fmt.Print(markdown(order, measured, promises))
		require.NoError(t, os.WriteFile("../frontier.svg", picture(order, measured), 0o644))
	}
}
