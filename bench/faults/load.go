package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
)

// client sends requests at a steady pace, whether or not the last one was answered.
type client struct {
	name  string
	every time.Duration
}

// clients returns ten that reach the limit before the fault begins, and ten that never do: together 200 requests a
// second.
func clients() (all []client) {
	for i := range 10 {
		all = append(all,
			client{fmt.Sprintf("greedy-%02d", i), time.Second / 17},
			client{fmt.Sprintf("modest-%02d", i), time.Second / 3})
	}
	return all
}

// answer is what a client sees of a response.
type answer struct {
	status int  // 0 is none
	leaks  bool // the body has the error of Redis or of its client
	local  bool // the response says that Redis did not decide
}

// seen is a request and its answer.
type seen struct {
	client     int
	start, end time.Duration // since the load began
	answer
}

// patience is how long a client waits for a response.
const patience = 10 * time.Second

// load sends the requests of all clients for a while, and returns when all have been answered.
func load(all []client, length time.Duration, send func(client string) answer) []seen {
	var sending sync.WaitGroup
	var mu sync.Mutex
	var found []seen
	begin := time.Now()
	for i, c := range all {
		first := time.Duration(i) * c.every / time.Duration(len(all)) // not all at once
		sending.Go(func() {
			for at := first; at < length; at += c.every {
				time.Sleep(at - time.Since(begin))
				sending.Go(func() {
					start := time.Since(begin)
					a := send(c.name)
					end := time.Since(begin)
					mu.Lock()
					defer mu.Unlock()
					found = append(found, seen{i, start, end, a})
				})
			}
		})
	}
	sending.Wait()
	return found
}

// words are of errors of Redis and go-redis.
var words = []string{"redis", "dial tcp", "i/o timeout", "EOF", "OOM", "READONLY", "BUSY", "connection re"}

// sender returns what sends a request of a client to a server, and what closes its connections.
func sender(addr string) (send func(client string) answer, end func()) {
	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	over := &http.Client{Transport: transport, Timeout: patience}
	return func(client string) answer {
		request, err := http.NewRequest(http.MethodGet, "http://"+addr+"/", nil)
		if err != nil {
			return answer{}
		}
		request.Header.Set(peers.ClientHeader, client)
		response, err := over.Do(request)
		if err != nil {
			return answer{}
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		a := answer{status: response.StatusCode, local: response.Header.Get("X-RateLimit-Status") != ""}
		for _, word := range words {
			a.leaks = a.leaks || strings.Contains(string(body), word)
		}
		if err != nil {
			return answer{}
		}
		return a
	}, transport.CloseIdleConnections
}
