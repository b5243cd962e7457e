package transport

import (
	"fmt"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"
)

// FuzzFields reads whatever a partner may send: no time is negative, none is above the bound, and the draft's fields
// are read as RFC 9651 has them.
func FuzzFields(f *testing.F) {
	f.Add(`"a";r=0;t=4, "b, c";r=3;t=9`, `"a";q=9;qu="content-bytes"`, "120", "Tue, 01 Jan 2030 00:00:00 GMT")
	f.Add(`"a\"b";r=-1`, `a;q=1`, "1e400", "")
	f.Add(`"a";t;r=00012`, `("a" "b");q=1`, "-1s", "0")
	f.Fuzz(func(t *testing.T, limit, policy, text, date string) {
		h := http.Header{"Ratelimit": {limit}, "Ratelimit-Policy": {policy}, "X-Ratelimit-Remaining": {text},
			"X-Ratelimit-Reset": {date}, "Retry-After": {text}, "Date": {date}}
		own := transport{maxStop: time.Hour}
		for _, status := range []int{200, 429, 503} {
			d, stops := own.stopOf(&http.Response{StatusCode: status, Header: h})
			require.Equal(t, status != 200 && (status == 429 || text != ""), stops)
			require.True(t, !stops || d >= time.Millisecond && d <= time.Hour, d)
		}
		n, _ := reportOf(h, false).remaining(time.Minute)
		require.GreaterOrEqual(t, n, 0)
		list, err := httpsfv.UnmarshalList([]string{limit})
		if err != nil || policy != "" {
			return
		}
		var want []int
		for _, member := range list {
			item, ok := member.(httpsfv.Item)
			if !ok {
				return
			}
			if _, named := item.Value.(string); !named {
				return
			}
			if r, _ := item.Params.Get("r"); r != nil {
				if n, ok := r.(int64); ok && n >= 0 && n <= math.MaxInt32 {
					want = append(want, int(n))
				}
			}
		}
		var got []int
		for _, s := range draft(h) {
			if s.remaining <= math.MaxInt32 {
				got = append(got, s.remaining)
			}
		}
		require.Equal(t, want, got)
	})
}

// TestComparedKeysAreBounded, and each key has its own time.
func TestComparedKeysAreBounded(t *testing.T) {
	t.Parallel()
	var l compared
	now := time.Now()
	for i := range maxKeys + 100 {
		require.True(t, l.due(fmt.Sprint(i), now))
	}
	require.Len(t, l.at, maxKeys)
	last := fmt.Sprint(maxKeys + 99)
	require.False(t, l.due(last, now.Add(compareGap-1)))
	require.True(t, l.due(last, now.Add(compareGap)))
	require.Len(t, l.at, maxKeys, "a known key takes no other's place")
}

// TestAnAttemptLeavesOnce: when it ends, another may be the first one after a stop that was made longer meanwhile.
func TestAnAttemptLeavesOnce(t *testing.T) {
	calls := &transport{}
	calls.stops.add("key", time.Now())
	one := attempt{t: calls, key: "key"}
	var err error
	one.first, err = calls.stops.wait(t.Context(), one.key)
	require.NoError(t, err)
	require.NotNil(t, one.first)
	calls.stops.add("key", time.Now())
	one.leave()
	next, err := calls.stops.wait(t.Context(), one.key)
	require.NoError(t, err)
	require.NotNil(t, next)
	one.leave()
	require.NotNil(t, next.first, "it is still the first one")
}
