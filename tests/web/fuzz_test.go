package web_test

import (
	"errors"
	"testing"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

func FuzzParseLimit(f *testing.F) {
	for _, s := range []string{"100/m", "5/15m", "10/s burst 20", "-1/0s", "0/d", "1/1h30m",
		"9/ms burst 9007199254740991", "/", "",
		"10/sec", "5/15minutes", "100/hours", "1/0days", "1/70000days", "1/minmin", "1/1.5hour",
		"1/99999999999999999999sec", "+5/day", "1/007min", "5/15m fixed-window", "5/s sliding-window burst 5",
		"4 in flight", "0 in flight",
		"unlimited", "prohibited"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		limit, err := ginlimit.ParseLimit(s)
		if err != nil {
			if !errors.Is(err, ginlimit.ErrInvalidArgument) || limit != (ginlimit.Limit{}) {
				t.Fatalf("%q: %v, %v", s, limit, err)
			}
			return
		}
		back, err := ginlimit.ParseLimit(limit.String())
		if err != nil || back != limit {
			t.Fatalf("%q is %+v, whose text %q is %+v, %v", s, limit, limit.String(), back, err)
		}
		r, err := testkit.NewLocal(t).Reserve(t.Context(), "k", 1, limit)
		if errors.Is(err, ginlimit.ErrInvalidArgument) { // a window may count what a token bucket does not
			r, err = testkit.NewLocal(t, testkit.WithAlgorithm(ginlimit.FixedWindow)).Reserve(t.Context(), "k", 1, limit)
		}
		if err != nil || r.Result().Allowed != (limit.Rate != 0 || limit.InFlight > 0) {
			t.Fatalf("%q: a limit that parses does not limit: %+v, %v", s, r.Result(), err)
		}
	})
}
