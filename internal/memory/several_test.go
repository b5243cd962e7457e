package memory

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// TestDecisionsOnSeveralKeysLockInOneOrder, whatever the order of the keys: else two wait for each other for ever.
func TestDecisionsOnSeveralKeysLockInOneOrder(t *testing.T) {
	t.Parallel()
	s, limit := New(MaxBuckets), newBucket(t, bucket.Token, 100, time.Second)
	keys := make([][]byte, shards)
	for i, found := 0, 0; found < shards; i++ {
		if key := fmt.Append(nil, i); keys[s.shardOf(key)] == nil {
			keys[s.shardOf(key)] = key
			found++
		}
	}
	for _, order := range [][]int{{0, shards - 1}, {shards - 1, 0}, {7, 3, 12}, {12, 7, 3}} {
		var parts []Part
		for _, i := range order {
			parts = append(parts, Part{keys[i], []bucket.Bucket{limit}, take(1), make([]bucket.State, 1)})
		}
		last := slices.Max(order)
		s.shards[last].mu.Lock()
		done := make(chan struct{})
		go func() {
			s.TakeAll(parts, func() bool { return true })
			close(done)
		}()
		for _, i := range order {
			require.Eventually(t, func() bool {
				free := i != last && s.shards[i].mu.TryLock()
				if free {
					s.shards[i].mu.Unlock()
				}
				return !free
			}, time.Minute, time.Microsecond, "%v: shard %d is locked before shard %d", order, i, last)
		}
		s.shards[last].mu.Unlock()
		<-done
	}
}

// TestTenantsOfADecisionThatTakesNothing: a tenant finds what the tenants before it would take of one bucket, and
// leave what was known.
func TestTenantsOfADecisionThatTakesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, limit := clientsOf(New(MaxBuckets)), newBucket(t, bucket.Token, 100, time.Hour)
		buckets := []bucket.Bucket{limit, bucket.NewTenants(&limit)}
		part := func(tenant string) Part {
			op := take(1)
			op.Tenant = bucket.Tenant{Name: tenant, Weight: 1}
			return Part{c.key(0), buckets, op, make([]bucket.State, 2)}
		}
		for _, row := range []struct {
			tenants []string
			takes   bool
			kept    int
			tokens  int64
			last    int64 // how much the last one finds taken
		}{
			{[]string{"a", "b"}, false, 0, 0, 1},
			{[]string{"a", "b"}, true, 2, 2, 1},
			{[]string{"c", "d"}, false, 2, 2, 3},
			{[]string{"a", "c", "d"}, false, 2, 2, 4},
			{[]string{"c", "d"}, true, 4, 4, 3},
		} {
			var parts []Part
			for _, tenant := range row.tenants {
				parts = append(parts, part(tenant))
			}
			c.store.TakeAll(parts, func() bool { return row.takes })
			require.Equal(t, row.last*limit.Cost, parts[len(parts)-1].States[0].Level, "%+v", row)
			require.Equal(t, row.kept, tenantsKept(c.store), "%+v", row)
			require.Equal(t, row.kept, c.tenants, "%+v", row)
			found := make([]bucket.State, 1)
			c.store.Do(c.key(0), buckets[:1], bucket.Peek(1), found)
			require.Equal(t, row.tokens*limit.Cost, found[0].Level, "%+v", row)
		}
	})
}
