package ginlimit_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// TestKindsOfLimitsEqualTheProcess has every method called on limits of two kinds. Periods are so long, and quotas end so late, that
// a clock that runs makes no difference but for seconds.
func TestKindsOfLimitsEqualTheProcess(t *testing.T) {
	onEveryAlgorithm(t, func(t *testing.T, e engine) {
		model := newLocal(t, ginlimit.WithAlgorithm(e.algorithm))
		now := time.Now().UTC()
		month := ginlimit.PerCalendar(23, ginlimit.CalendarMonth(nil, 1+(now.Day()+14)%28))
		week := ginlimit.PerCalendar(14, ginlimit.CalendarWeek(nil, (now.Weekday()+3)%7))
		for i, limits := range [][]ginlimit.Limit{
			{month}, {week, month}, {ginlimit.PerDay(10), month}, {month, {Rate: 12, Period: 23 * time.Hour}, ginlimit.PerDay(10)}, {week, ginlimit.PerDay(17), month},
		} {
			r := rand.New(rand.NewPCG(uint64(i), uint64(e.algorithm)))
			for client := range 4 {
				blocked := false
				for range 40 {
					s := step{op: "AllowN", n: 1 + r.IntN(5), key: fmt.Sprintf("client %d of %d", client, i), limits: limits}
					switch r.IntN(24) {
					case 0, 1, 2, 3:
						s.op, s.n = "AllowUpTo", 1+r.IntN(9)
					case 4, 5:
						s.op = "Refund"
					case 6, 7, 8:
						s.op = "Peek"
					case 9:
						s.op = "Reset"
					case 10:
						s.op, s.d = "Block", time.Duration(1+r.IntN(50))*time.Hour
					case 11, 12, 13, 14:
						s.op, s.d = "Settle", time.Duration(r.IntN([]int{1, 6, 40}[r.IntN(3)])) // so many tokens
					}
					want, err := s.apply(t.Context(), model)
					require.NoError(t, err)
					got, err := s.apply(t.Context(), e.limiter)
					if e.frozen && (s.op == "Settle" || s.op == "Reset") { // the time goes on by which claims are reckoned
						e.advance(100 * time.Millisecond)
					}
					require.NoError(t, err)
					require.InDelta(t, want.RetryAfter.Seconds(), got.RetryAfter.Seconds(), 30, "%s: %+v, want %+v", s, got, want)
					if blocked = (blocked || s.op == "Block") && s.op != "Reset"; !blocked { // else which limit's block ends last is a matter of milliseconds
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
