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
	p := testkit.NewPolicy(t, testkit.NewLimiter(t, rdb), "partner", ginlimit.PerSecond(1_000_000),
		ginlimit.WithLease(time.Minute))
	calls := testkit.Must(transport.New(p, &quick{http.Response{StatusCode: 200, Header: http.Header{},
		Body: http.NoBody}}))
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
