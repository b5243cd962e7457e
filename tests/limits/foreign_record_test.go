package limits_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestARefundThatFailsChangesNothing: a value that is no record stands where the second limit's
// record would, and none of the limits is changed. A Reset removes it.
func TestARefundThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	rdb, _ := testkit.NewMiniredis(t)
	p := testkit.NewPolicy(t, testkit.NewLimiter(t, rdb), "api", ginlimit.PerMinute(10), ginlimit.PerHour(20))
	r := testkit.Must(p.AllowN(t.Context(), "alice", 7))
	require.Equal(t, 3, r.Remaining)
	require.NoError(t, rdb.RPush(t.Context(), "ginlimit:{api|alice}:h:back", "x").Err())
	require.ErrorIs(t, p.Refund(t.Context(), "alice", 2), ginlimit.ErrUnavailable)
	r = testkit.Must(p.Peek(t.Context(), "alice"))
	require.Equal(t, 3, r.Remaining)
	require.NoError(t, p.Reset(t.Context(), "alice"))
	r = testkit.Must(p.Peek(t.Context(), "alice"))
	require.Equal(t, 10, r.Remaining)
}
