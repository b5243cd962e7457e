package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
	"github.com/ginlimit/ginlimit/bench/internal/proxy"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

func TestMain(m *testing.M) {
	proxy.RunIfAsked()
	os.Exit(m.Run())
}

// TestRowsAreComplete measures two libraries, and Gin alone, for two short rounds of every kind of situation.
func TestRowsAreComplete(t *testing.T) {
	redistest.Start(t) // or skip
	const rounds = 2
	chosen := slices.DeleteFunc(peers.All(), func(l peers.Library) bool {
		return l.Role == peers.Peer && l.Name != "redis_rate"
	})
	only := `^(clients=1000|denied)/callers=16$|^stream/rate=2000/garbage$|ab$`
	if runtime.GOOS == "linux" {
		only += `|^distance=1ms/callers=16$`
	}
	file := filepath.Join(t.TempDir(), "rounds.json")
	var out strings.Builder
	o := options{rounds: rounds, length: 20 * time.Millisecond, only: regexp.MustCompile(only), json: file}
	if err := compare(t.Context(), o, chosen, situations(), &out, io.Discard); err != nil {
		t.Fatal(err)
	}

	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var written struct{ Rounds []Round }
	if err := json.Unmarshal(data, &written); err != nil {
		t.Fatal(err)
	}
	seen := map[[2]string]int{}
	for _, r := range written.Rounds {
		seen[[2]string{r.Situation, r.Library}]++
		if r.Decisions == 0 || r.Time <= 0 || r.P50 <= 0 || r.P99 < r.P50 ||
			r.P999 > 0 && r.P999 < r.P99 || r.ProcessCPU <= 0 || r.Allocations < 0 {
			t.Errorf("incomplete: %+v", r)
		}
		if r.Library == "redis_rate" && (r.RedisCPU <= 0 || r.Commands < 1 || r.Reads <= 0) {
			t.Errorf("no trace in Redis: %+v", r)
		}
		// on a busy machine ginlimit may decide without Redis
		if r.Library != "ginlimit" && r.Library != "lease" && r.Wrong > 0 {
			t.Errorf("wrong answers: %+v", r)
		}
	}
	for key, n := range seen {
		if n != rounds {
			t.Errorf("%d rounds of %v", n, key)
		}
	}
}
