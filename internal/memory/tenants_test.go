package memory

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// takeShare takes a token for a tenant if that fits, and returns the states found.
func takeShare(s *Store, tenant string, limit bucket.Bucket, op bucket.Op) (limitFound, share bucket.State) {
	states := make([]bucket.State, 2)
	op.Tenant = bucket.Tenant{Name: tenant, Weight: 1}
	s.Do([]byte("k"), []bucket.Bucket{limit, bucket.NewTenants(&limit)}, op, states)
	return states[0], states[1]
}

// tenantsKept returns what the store keeps of tenants.
func tenantsKept(s *Store) (n int) {
	for i := range s.shards {
		for _, e := range s.shards[i].buckets {
			if e.tenants != nil {
				n += len(e.tenants.byName)
			}
		}
	}
	return n
}

// TestTenantsAreKeptUntilNothingIsLeft of what they have charged.
func TestTenantsAreKeptUntilNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, limit := New(MaxBuckets), newBucket(t, bucket.Token, 100, time.Second)
		one := bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}
		for i := range 20 {
			takeShare(s, fmt.Sprint("tenant ", i), limit, one)
		}
		require.Equal(t, 20, tenantsKept(s))
		five := one
		five.N = 5
		takeShare(s, "heavy", limit, five)
		time.Sleep(220 * time.Millisecond) // 21 tenants, each drains at a 21st of 100 a second
		takeShare(s, "heavy", limit, one)
		require.Equal(t, 1, tenantsKept(s))
		time.Sleep(time.Second)
		takeShare(s, "last", limit, bucket.Peek(1))
		require.Equal(t, 1, tenantsKept(s), "it is removed with the next charge, or for room")
		_, share := takeShare(s, "heavy", limit, bucket.Peek(1))
		require.Zero(t, share.Shares.Weights, "nothing counts, as the bucket is full")
	})
}

// TestVeryManyTenantsAreForgotten, as a process bounds its memory: then what is missing is nobody's.
func TestVeryManyTenantsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, limit := New(MaxBuckets), newBucket(t, bucket.Token, 1<<18, time.Second)
		one := bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}
		for i := range maxTenants {
			takeShare(s, fmt.Sprint("tenant ", i), limit, one)
		}
		require.Equal(t, maxTenants, tenantsKept(s))
		takeShare(s, "one more", limit, one)
		require.Equal(t, 1, tenantsKept(s))
		found, share := takeShare(s, "tenant 1", limit, bucket.Peek(1))
		require.EqualValues(t, (maxTenants+1)*limit.Cost, found.Level)
		require.Equal(t, bucket.Shares{
			Sum: (maxTenants + 1) * bucket.Parts, Weights: 1, Finish: bucket.NoFinish, Weight: 1,
		}, *share.Shares)
	})
}
