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
		const most = maxTenants / shards
		s, limit := New(MaxBuckets), newBucket(t, bucket.Token, 1<<18, time.Second)
		one := bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}
		for i := range most {
			takeShare(s, fmt.Sprint("tenant ", i), limit, one)
		}
		require.Equal(t, most, tenantsKept(s))
		takeShare(s, "one more", limit, one)
		require.Equal(t, 1, tenantsKept(s))
		found, share := takeShare(s, "tenant 1", limit, bucket.Peek(1))
		require.EqualValues(t, (most+1)*limit.Cost, found.Level)
		require.Equal(t, bucket.Shares{
			Sum: (most + 1) * bucket.Parts, Weights: 1, Finish: bucket.NoFinish, Weight: 1,
		}, *share.Shares)
	})
}

// TestTenantsOfManyBucketsAreBounded: beyond the bound, the bucket with the most forgets its tenants.
func TestTenantsOfManyBucketsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most, few = maxTenants / shards, 100
		c, limit := clientsOf(New(MaxBuckets)), newBucket(t, bucket.Token, 1<<18, time.Hour)
		take := func(client, tenant int) {
			c.store.Do(c.key(client), []bucket.Bucket{limit, bucket.NewTenants(&limit)}, bucket.Op{
				Verb: bucket.Take, Charges: 1, N: 1, Tenant: bucket.Tenant{Name: fmt.Sprint(tenant), Weight: 1},
			}, make([]bucket.State, 2))
		}
		for tenant := range most - 3*few {
			take(0, tenant)
		}
		for client := range 4 {
			for tenant := range few {
				take(1+client, tenant)
			}
		}
		require.Equal(t, 4*few, tenantsKept(c.store))
		require.Equal(t, 4*few, c.tenants)
	})
}
