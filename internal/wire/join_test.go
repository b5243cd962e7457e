package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// TestJoint: a script is given the limits of all calls, then the ban, then all slots. The call with the ban is the
// first of each, as its denials ban its client. Split returns to each call what was found of its own buckets.
func TestJoint(t *testing.T) {
	t.Parallel()
	limit := newBucket(bucket.Token)
	calls := []*dispatch.Call{
		merged(1, bucket.NewSlots(7)).Call,
		merged(1, limit, limit, bucket.NewSlots(3)).Call,
		merged(1, limit, bucket.NewBan(100, 1000), bucket.NewSlots(5)).Call,
	}
	for i, c := range calls {
		c.Key, c.Hash, c.Attempt = []byte{"abc"[i]}, uint64(i), bucket.Attempt{Number: int64(i + 1)}
	}
	calls[1].Op.Waits, calls[2].Op.Bans = 300, bucket.LimitBans
	c := dispatch.NewCall()
	const keys = "10 {c}:s {b}:s {b}:s {c}:ban {c}:slots {a}:slots {b}:slots " +
		"{c}:slots:turns:5 {a}:slots:turns:7 {b}:slots:turns:3 "
	const limits = "1 100 1000 1 100 1000 1 100 1000 "
	const guards = "both 100 1000 2 1 1 P 300 5 0 0 3, 7 0 0 1, 3 0 0 2, 3"
	joint := func() string {
		Join(c, calls)
		SetNames(c, "{")
		return text(AppendGroup(nil, &dispatch.Group{Call: c, Charges: 1}, "P"))
	}
	require.Equal(t, keys+"take 1 1 "+limits+guards, joint())

	calls[1].Op.N = 4 // costs that differ follow the limits
	require.Equal(t, keys+"take 0 1 "+limits+"1 4 4 "+guards, joint())

	for i := range c.States {
		c.States[i].Level = int64(i)
	}
	Split(c, calls)
	levels := func(c *dispatch.Call) (all []int64) {
		for _, s := range c.States {
			all = append(all, s.Level)
		}
		return all
	}
	require.Equal(t, []int64{5}, levels(calls[0]))
	require.Equal(t, []int64{1, 2, 6}, levels(calls[1]))
	require.Equal(t, []int64{0, 3, 4}, levels(calls[2]))
}
