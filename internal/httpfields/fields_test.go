package httpfields_test

import (
	"math"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

func TestFields(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		set  func(f *httpfields.Fields, h http.Header)
		want http.Header
	}{
		"a limit": {func(f *httpfields.Fields, h http.Header) { f.SetXRateLimit(h, 10, 9, 60) },
			http.Header{"X-Ratelimit-Limit": {"10"}, "X-Ratelimit-Remaining": {"9"}, "X-Ratelimit-Reset": {"60"}}},
		"a denial": {func(f *httpfields.Fields, h http.Header) { f.SetDenied(h, 60) },
			http.Header{"Retry-After": {"60"}, "Cache-Control": {"no-store"}}},
		"a denial for a second": {func(f *httpfields.Fields, h http.Header) { f.SetDenied(h, 1) },
			http.Header{"Retry-After": {"1"}, "Cache-Control": {"no-store"}}},
		"a denial after which no wait helps": {func(f *httpfields.Fields, h http.Header) { f.SetDenied(h, 0) },
			http.Header{"Cache-Control": {"no-store"}}},
		"degraded": {func(f *httpfields.Fields, h http.Header) {
			f.Text(h, httpfields.XRateLimitStatus, httpfields.Degraded)
		},
			http.Header{"X-Ratelimit-Status": {"degraded"}}},
		"the later value": {func(f *httpfields.Fields, h http.Header) { f.Number(h, "A", 1); f.Number(h, "A", 2) },
			http.Header{"A": {"2"}}},
	} {
		h := http.Header{}
		row.set(new(httpfields.Fields), h)
		assert.Equal(t, row.want, h, name)
		for field := range h {
			assert.Equal(t, http.CanonicalHeaderKey(field), field)
		}
	}
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	all := []int64{0, 1, 4095, 4096, 4096 + 256, -1, math.MaxInt64, math.MinInt64}
	for n := range int64(2000) { // each place of the cache
		all = append(all, 5000+n)
	}
	for _, n := range append(all, all...) {
		h, f := http.Header{}, new(httpfields.Fields)
		f.SetXRateLimit(h, n, n, n)
		f.Number(h, "A", n)
		f.Number(h, "B", n^1) // the first one's text stays
		f.SetDenied(h, n)
		want := []string{strconv.FormatInt(n, 10)}
		for _, name := range []string{"A", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"} {
			assert.Equal(t, want, h[name], name)
		}
		assert.Equal(t, []string{strconv.FormatInt(n^1, 10)}, h["B"])
		if n > 0 {
			assert.Equal(t, want, h["Retry-After"])
		}
	}
}

// TestFieldsShareNoMemory: what is added to one field, or set once all places are used, changes no
// other.
func TestFieldsShareNoMemory(t *testing.T) {
	t.Parallel()
	f, h := new(httpfields.Fields), http.Header{}
	for i := range 10 {
		f.Number(h, "A"+strconv.Itoa(i), int64(i))
	}
	for i := range 10 {
		h.Add("A"+strconv.Itoa(i), "more")
	}
	for i := range 10 {
		assert.Equal(t, []string{strconv.Itoa(i), "more"}, h["A"+strconv.Itoa(i)])
	}
}

func TestFieldsOfAResponseAllocateNothing(t *testing.T) { // not parallel: it counts allocations
	h := http.Header{}
	f := new(httpfields.Fields)
	write := func() {
		*f = httpfields.Fields{}
		f.SetXRateLimit(h, 1_000_000, 999_999, 2_678_400)
		f.SetDenied(h, 2_678_400)
		f.Text(h, httpfields.ContentType, httpfields.TypeProblem)
		f.Number(h, httpfields.ContentLength, 200)
	}
	write()
	require.Zero(t, testing.AllocsPerRun(100, write))
}

func TestSecondsAreRoundedUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Second - 1: 1, time.Second: 1, time.Second + 1: 2, time.Minute: 60,
		-1: 0, -time.Hour: 0, math.MinInt64: 0, math.MaxInt64: 9223372037,
	} {
		assert.Equal(t, want, httpfields.Seconds(d), d)
	}
}
