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
