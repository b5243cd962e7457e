package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
)

// stream sends requests at random times, as independent clients do (a Poisson process): each in a
// goroutine of its own, as in a server, and none waits for the answer to another. The latency counts
// from when a request was due.
type stream struct {
	ctx       context.Context
	rate      int // requests per second
	clients   []string
	neighbour bool // something else in the process collects garbage all the time

	idle sync.Pool // of *peers.Caller
}

func newStream(ctx context.Context, s situation) *stream {
	st := &stream{ctx: ctx, rate: s.rate, clients: make([]string, s.clients), neighbour: s.neighbour}
	for i := range st.clients {
		st.clients[i] = "client " + strconv.Itoa(i)
	}
	st.idle.New = func() any { return peers.NewCaller(ctx) }
	return st
}

// run sends requests until the time is over.
func (s *stream) run(c *contestant, length time.Duration) (load, error) {
	if s.neighbour {
		defer collectGarbage()()
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var latencies []time.Duration
	wrong := 0
	start, mean := time.Now(), float64(time.Second)/float64(s.rate)
	for due := time.Duration(0); due < length; due += time.Duration(rand.ExpFloat64() * mean) {
		time.Sleep(due - time.Since(start))
		client := s.clients[rand.IntN(len(s.clients))]
		all.Go(func() {
			caller := s.idle.Get().(*peers.Caller)
			status := caller.Call(c.engine, client)
			took, failed := time.Since(start)-due, status != http.StatusOK || caller.Degraded()
			s.idle.Put(caller)
			mu.Lock()
			defer mu.Unlock()
			if latencies = append(latencies, took); failed {
				wrong++
			}
		})
	}
	all.Wait()
	wall := time.Since(start)
	slices.Sort(latencies)
	return loadOf(latencies, wrong, wall), nil
}

// loadOf returns what was sent, by the sorted latencies of all requests.
func loadOf(latencies []time.Duration, wrong int, wall time.Duration) load {
	at := func(q float64) float64 { return float64(latencies[int(q*float64(len(latencies)))]) / 1e3 }
	return load{
		decisions: len(latencies), wrong: wrong, wall: wall, p50: at(0.5), p99: at(0.99), p999: at(0.999),
	}
}

// collectGarbage keeps some 50 MB of small objects and makes as much garbage ten times a second, until
// end is called.
func collectGarbage() (end func()) {
	const objects = 100_000
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		kept := make([]*[64]int, objects)
		for i := 0; ; i++ {
			kept[i%objects] = new([64]int)
			if i%(objects/100) == 0 {
				select {
				case <-ended:
					return
				case <-time.After(time.Millisecond):
				}
			}
		}
	}()
	return func() { close(ended); <-done }
}
