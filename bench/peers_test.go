package bench

import (
	"net/http"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// TestEveryLibraryLimits keeps the comparison fair: each library does what it is compared for.
func TestEveryLibraryLimits(t *testing.T) {
	for _, l := range peers.All() {
		if l.Role == peers.Bare {
			continue
		}
		t.Run(l.Name, func(t *testing.T) {
			limiter, err := l.New(redistest.Connect(t, redistest.Start(t)), peers.Limit{Rate: 5, Period: time.Hour, Burst: 5})
			if err != nil {
				t.Fatal(err)
			}
			defer limiter.Close()
			h, c := peers.NewEngine(limiter.Handler), peers.NewCaller(t.Context())
			defer c.Close()
			for i := range 7 {
				want := http.StatusOK
				if i >= 5 {
					want = http.StatusTooManyRequests
				}
				if got := c.Call(h, "client"); got != want {
					t.Fatalf("request %d: %d, want %d", i+1, got, want)
				}
			}
			if got := c.Call(h, "another"); got != http.StatusOK {
				t.Fatalf("another client: %d", got)
			}
		})
	}
}
