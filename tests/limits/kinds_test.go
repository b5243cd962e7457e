package limits_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestKindsOfLimitsEqualTheProcess has every method called on limits of two kinds. Periods are so
// long, and quotas end so late, that a clock that runs makes no difference but for seconds.
func TestKindsOfLimitsEqualTheProcess(t *testing.T) {
	testkit.OnEveryAlgorithm(t, func(t *testing.T, e testkit.Engine) {
		model := testkit.NewLocal(t, testkit.WithAlgorithm(e.Algorithm))
		now := time.Now().UTC()
		month := ginlimit.PerCalendar(23, ginlimit.CalendarMonth(nil, 1+(now.Day()+14)%28))
		week := ginlimit.PerCalendar(14, ginlimit.CalendarWeek(nil, (now.Weekday()+3)%7))
		for i, limits := range [][]ginlimit.Limit{
			{month}, {week, month}, {ginlimit.PerDay(10), month},
			{month, {Rate: 12, Period: 23 * time.Hour}, ginlimit.PerDay(10)}, {week, ginlimit.PerDay(17), month},
		} {
			r := rand.New(rand.NewPCG(uint64(i), uint64(e.Algorithm)))
			for client := range max(2, testkit.Steps(4)) {
				blocked, reset := false, false
				for range 40 {
					s := testkit.Step{Op: "AllowN", N: 1 + r.IntN(5), Key: fmt.Sprintf("client %d of %d", client, i), Limits: limits}
					switch r.IntN(24) {
					case 0, 1, 2, 3:
						s.Op, s.N = "AllowUpTo", 1+r.IntN(9)
					case 4, 5:
						s.Op = "Refund"
					case 6, 7, 8:
						s.Op = "Peek"
					case 9:
						s.Op = "Reset"
					case 10:
						s.Op, s.D = "Block", time.Duration(1+r.IntN(50))*time.Hour
					case 11, 12, 13, 14:
						s.Op, s.D = "Settle", time.Duration(r.IntN([]int{1, 6, 40}[r.IntN(3)])) // so many tokens
					}
					if reset = reset || s.Op == "Reset"; reset && s.Op == "Settle" {
						s.Op, s.D = "Peek", 0 // in Redis it gives nothing back so soon after a reset
					}
					want := testkit.Must(s.Apply(t.Context(), model))
					got, err := s.Apply(t.Context(), e.Limiter)
					if e.Frozen && (s.Op == "Settle" || s.Op == "Reset") { // the time goes on by which claims are reckoned
						e.Advance(100 * time.Millisecond)
					}
					require.NoError(t, err)
					require.InDelta(t, want.RetryAfter.Seconds(), got.RetryAfter.Seconds(), 30, "%s: %+v, want %+v", s, got, want)
					// else which limit's block ends last is a matter of milliseconds
					if blocked = (blocked || s.Op == "Block") && s.Op != "Reset"; !blocked {
						require.InDelta(t, want.ResetAfter.Seconds(), got.ResetAfter.Seconds(), 30, "%s: %+v, want %+v", s, got, want)
						require.Equal(t, want.Limit, got.Limit, s)
					}
					want.RetryAfter, want.ResetAfter, want.Limit, want.Source = got.RetryAfter, got.ResetAfter, got.Limit, got.Source
					require.Equal(t, want, got, s)
				}
			}
		}
	})
}
