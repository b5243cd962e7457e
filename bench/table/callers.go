package main

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
)

// callers send requests through the Gin engine of one library at a time.
type callers struct {
	all       []*peers.Caller
	latencies [][]time.Duration // of each, used again in every round
	clients   []string
	denied    bool
}

func newCallers(ctx context.Context, n, clients int, denied bool) *callers {
	s := &callers{latencies: make([][]time.Duration, n), clients: make([]string, clients), denied: denied}
	for range n {
		s.all = append(s.all, peers.NewCaller(ctx))
	}
	for i := range s.clients {
		s.clients[i] = "client " + strconv.Itoa(i)
	}
	return s
}

func (s *callers) close() {
	for _, c := range s.all {
		c.Close()
	}
}

// visit sends one request for every client.
func (s *callers) visit(c *contestant) {
	for _, client := range s.clients {
		s.all[0].Call(c.engine, client)
	}
}

// run has every caller send one request after the other until the time is over.
func (s *callers) run(c *contestant, length time.Duration) (load, error) {
	want := http.StatusOK
	if s.denied && c.library.Role != peers.Bare {
		want = http.StatusTooManyRequests
	}
	var all sync.WaitGroup
	var wrong atomic.Int64
	var end time.Time
	started := make(chan struct{})
	for i, caller := range s.all {
		all.Go(func() {
			own := s.latencies[i][:0]
			<-started
			for {
				start := time.Now()
				if start.After(end) {
					break
				}
				// A multiple of a large prime: each client in turn, and neighbours far apart.
				client := s.clients[c.requests.Add(1)*2654435761%uint64(len(s.clients))]
				status := caller.Call(c.engine, client)
				own = append(own, time.Since(start))
				if status != want || caller.Degraded() {
					wrong.Add(1)
				}
				if s.denied {
					runtime.Gosched() // like a server's goroutine, which waits for its next request
				}
			}
			s.latencies[i] = own
		})
	}
	start := time.Now()
	end = start.Add(length)
	close(started)
	all.Wait()
	wall := time.Since(start)
	merged := slices.Concat(s.latencies...)
	slices.Sort(merged)
	return loadOf(merged, int(wrong.Load()), wall), nil
}
