package limits_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestAChangeThatFailsChangesNothing: a value that is no record stands where the second limit's
// record would, and none of the limits is changed.
func TestAChangeThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*ginlimit.Policy) error{
		"reset":  func(p *ginlimit.Policy) error { return p.Reset(t.Context(), "alice") },
		"refund": func(p *ginlimit.Policy) error { return p.Refund(t.Context(), "alice", 2) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, _ := testkit.NewMiniredis(t)
			p := testkit.NewPolicy(t, testkit.NewLimiter(t, rdb), "api", ginlimit.PerMinute(10),
				ginlimit.PerHour(20))
			r, err := p.AllowN(t.Context(), "alice", 7)
			require.NoError(t, err)
			require.Equal(t, 3, r.Remaining)
			require.NoError(t, rdb.RPush(t.Context(), "ginlimit:{api|alice}:h:back", "x").Err())
			require.ErrorIs(t, change(p), ginlimit.ErrUnavailable)
			r, err = p.Peek(t.Context(), "alice")
			require.NoError(t, err)
			require.Equal(t, 3, r.Remaining)
		})
	}
}
