package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// sharedBuckets returns a limit of a burst, and what tenants hold of it.
func sharedBuckets(t *testing.T, burst int64) []bucket.Bucket {
	limit := newBuckets(t, bucket.Token, burst)[0]
	return []bucket.Bucket{limit, bucket.NewTenants(&limit)}
}

// ofTenant is a call that takes tokens of a key for a tenant.
func ofTenant(name string, weight, charges int64, buckets []bucket.Bucket) *Call {
	op := take(charges, 1)
	op.Tenant = bucket.Tenant{Name: name, Weight: weight}
	return newCall("k", op, buckets)
}

func groupsOf(calls ...*Call) []*Group {
	b := newBatch()
	b.calls = calls
	b.coalesce()
	return b.Groups
}

// TestTenantsShareAGroup if a tenant has one weight.
func TestTenantsShareAGroup(t *testing.T) {
	t.Parallel()
	shared := sharedBuckets(t, 100)
	for name, row := range map[string]struct {
		calls  []*Call
		groups int
	}{
		"one tenant":            {[]*Call{ofTenant("a", 1, 1, shared), ofTenant("a", 1, 2, shared)}, 1},
		"several":               {[]*Call{ofTenant("a", 1, 1, shared), ofTenant("b", 2, 1, shared)}, 1},
		"another weight":        {[]*Call{ofTenant("a", 1, 1, shared), ofTenant("a", 2, 1, shared)}, 2},
		"shared and not shared": {[]*Call{ofTenant("a", 1, 1, shared), newCall("k", take(1, 1), shared[:1])}, 2},
	} {
		require.Len(t, groupsOf(row.calls...), row.groups, name)
	}
}

// TestAGroupHasFewTenants, so that no call holds Redis up; but any number of calls of these.
func TestAGroupHasFewTenants(t *testing.T) {
	t.Parallel()
	shared := sharedBuckets(t, 100)
	var calls []*Call
	for i := range 3*maxTenants + 1 {
		calls = append(calls, ofTenant(fmt.Sprint(i), 1, 1, shared), ofTenant(fmt.Sprint(i), 1, 1, shared))
	}
	groups := groupsOf(calls...)
	require.Len(t, groups, 4)
	for _, g := range groups {
		require.LessOrEqual(t, len(g.Tenants()), maxTenants)
	}
}

// TestRunsOfTenants are their charges in the order of the calls.
func TestRunsOfTenants(t *testing.T) {
	t.Parallel()
	shared := sharedBuckets(t, 100)
	group := groupsOf(ofTenant("a", 1, 1, shared), ofTenant("a", 1, 2, shared), ofTenant("b", 3, 1, shared),
		ofTenant("a", 1, 4, shared))[0]
	all, runs := group.Tenants(), group.Runs()
	require.Equal(t, []bucket.Tenant{{Name: "a", Weight: 1}, {Name: "b", Weight: 3}}, all)
	require.Equal(t, []Run{{0, 3}, {1, 1}, {0, 4}}, runs)
	require.EqualValues(t, 8, group.Charges)

	require.Empty(t, groupsOf(newCall("k", take(0, 1), shared))[0].Tenants(), "a probe has no tenant")
	one := groupsOf(ofTenant("a", 1, 1, shared), ofTenant("a", 1, 2, shared))[0]
	require.Len(t, one.Tenants(), 1)
	require.Equal(t, []Run{{0, 3}}, one.Runs())
}

// TestTenantsOfAGroupAreAnsweredInOrder: each call finds what those before it have left, of the bucket and
// of its tenant's share.
func TestTenantsOfAGroupAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	shared := sharedBuckets(t, 8)
	calls := []*Call{
		ofTenant("a", 1, 1, shared), ofTenant("a", 1, 3, shared), ofTenant("a", 1, 1, shared),
		ofTenant("b", 1, 1, shared), ofTenant("b", 1, 2, shared), ofTenant("a", 1, 1, shared), ofTenant("c", 1, 1, shared),
	}
	group := groupsOf(calls...)[0]
	group.Found = []bucket.State{{}, {}}
	for _, tenant := range group.Tenants() {
		group.FoundTenant(bucket.State{Shares: &bucket.Shares{Finish: bucket.NoFinish, Weight: tenant.Weight}})
	}
	group.distribute(time.Now(), time.Now())
	var made, room []int64
	for _, c := range calls {
		room = append(room, c.Buckets[0].Remaining(c.States[0].Level))
		fits := c.Buckets[0].Fits(c.States[0], c.Op.Charges, 1)
		made = append(made, c.Buckets[1].Fits(c.States[1], fits, 1))
	}
	require.Equal(t, []int64{1, 3, 0, 1, 1, 0, 1}, made, "a holds 4 of 8, then b 2 of the 4 that are free, then c one")
	require.Equal(t, []int64{8, 7, 4, 4, 3, 2, 2}, room)
}

// TestATenantAllocatesNoMoreBesideMany: what a call allocates does not grow with the tenants of its group.
func TestATenantAllocatesNoMoreBesideMany(t *testing.T) {
	shared := sharedBuckets(t, 1<<20)
	each := func(tenants int) float64 {
		calls := make([]*Call, tenants)
		for i := range calls {
			calls[i] = ofTenant(fmt.Sprint(i), 1, 1, shared)
		}
		return testing.AllocsPerRun(3, func() {
			group := groupsOf(calls...)[0]
			group.Found = []bucket.State{{}, {}}
			for range group.Tenants() {
				group.FoundTenant(bucket.State{Shares: &bucket.Shares{Finish: bucket.NoFinish, Weight: 1}})
			}
			for c := group.Call; c != nil; c = c.next {
				group.tenants.choose(group, c)
				group.charge(c)
			}
			for c := group.Call; c != nil; {
				c, c.next = c.next, nil
			}
		}) / float64(tenants)
	}
	require.Less(t, each(1000), 2*each(20)+1)
}
