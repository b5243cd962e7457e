package transport_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/transport"
)

// quick is an API that costs nothing.
type quick struct{ response http.Response }

func (q *quick) RoundTrip(*http.Request) (*http.Response, error) { return &q.response, nil }

// TestARequestMakesThreeAllocations while a lease lasts: net/http's copy of the request, its context, and the hooks by
// which the base says how far it has come.
func TestARequestMakesThreeAllocations(t *testing.T) {
	if testkit.RaceDetector {
		t.Skip("the race detector allocates")
	}
	rdb, _ := testkit.NewMiniredis(t)
	p := testkit.NewPolicy(t, testkit.NewLimiter(t, rdb), "partner", ginlimit.PerSecond(1_000_000), ginlimit.WithLease(time.Minute))
	calls, err := transport.New(p, &quick{http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}})
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://partner.example", http.NoBody)
	require.NoError(t, err)
	send := func() {
		if _, err := calls.RoundTrip(r); err != nil {
			panic(err)
		}
	}
	for range 2000 { // until enough is leased
		send()
	}
	least := 1e9
	for range 20 { // other goroutines may allocate meanwhile, and a lease may end
		least = min(least, testing.AllocsPerRun(50, send))
	}
	require.LessOrEqual(t, least, 3.0)
}

// BenchmarkRoundTrip is what a transport adds to a request that need not wait, by tokens that its process holds.
func BenchmarkRoundTrip(b *testing.B) {
	limiter, err := ginlimit.NewLimiter(testkit.Connect(b, testkit.StartRedis(b)))
	require.NoError(b, err)
	defer limiter.Close()
	p, err := limiter.Policy("partner", ginlimit.PerSecond(100_000_000), ginlimit.WithLease(time.Second))
	require.NoError(b, err)
	calls, err := transport.New(p, &quick{http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}})
	require.NoError(b, err)
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://partner.example", http.NoBody)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := calls.RoundTrip(r); err != nil {
			b.Fatal(err)
		}
	}
}
