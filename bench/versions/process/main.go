// Command process sends requests through Gin and this library. It compiles with this version of the
// library and with the one it is compared with, so it uses only what both have.
//
// Its argument is the address of a redis-server. It reads a round from each line of its input, as
// JSON, and writes what it did.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
)

// Round is what to do. Each caller sends requests of its share of the clients, one after another. With
// 0 requests, each client sends one, which is not measured.
type Round struct {
	Callers, Clients, Requests int
	Limits                     string // see limits.go; under "denied" all requests but a client's first are denied
}

// Done is what was done.
type Done struct {
	Wrong       int // answers with another status
	Wall, CPU   time.Duration
	Allocations uint64
}

func main() {
	if err := serve(os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(addr string, in io.Reader, out io.Writer) error {
	gin.SetMode(gin.ReleaseMode)
	served, err := engines(addr)
	if err != nil {
		return err
	}
	for rounds := json.NewDecoder(in); ; {
		var r Round
		switch err := rounds.Decode(&r); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		done, err := r.run(served[r.Limits])
		if err != nil {
			return err
		}
		if err := json.NewEncoder(out).Encode(done); err != nil {
			return err
		}
	}
}

func (r Round) run(engine *gin.Engine) (done Done, err error) {
	want := http.StatusOK
	if r.Limits == "denied" {
		want = http.StatusTooManyRequests
	}
	var all sync.WaitGroup
	var wrong atomic.Int64
	begin := make(chan struct{})
	for caller := range r.Callers {
		requests := r.requests(caller)
		w := &response{header: http.Header{}}
		for _, request := range requests {
			if r.Requests == 0 {
				engine.ServeHTTP(w.reset(), request)
			}
		}
		all.Go(func() {
			<-begin
			for i := range r.Requests / r.Callers {
				engine.ServeHTTP(w.reset(), requests[i%len(requests)])
				if w.status != want {
					wrong.Add(1)
				}
			}
		})
	}
	runtime.GC()
	before, err := usage()
	if err != nil {
		return done, err
	}
	start := time.Now()
	close(begin)
	all.Wait()
	done.Wall = time.Since(start)
	after, err := usage()
	done.Wrong, done.CPU = int(wrong.Load()), after.CPU-before.CPU
	done.Allocations = after.Allocations - before.Allocations
	return done, err
}

// requests returns a request for each client of a caller.
func (r Round) requests(caller int) (all []*http.Request) {
	for client := caller % r.Clients; client < r.Clients; client += r.Callers {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.RemoteAddr = fmt.Sprintf("10.0.%d.%d:1234", client/256, client%256)
		all = append(all, request)
	}
	return all
}

func usage() (d Done, err error) {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	var u syscall.Rusage
	err = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return Done{CPU: time.Duration(u.Utime.Nano() + u.Stime.Nano()), Allocations: memory.Mallocs}, err
}

// response is a response whose memory is used again.
type response struct {
	header http.Header
	status int
}

func (w *response) reset() *response {
	clear(w.header)
	w.status = http.StatusOK
	return w
}

func (w *response) Header() http.Header { return w.header }

func (w *response) Write(b []byte) (int, error) { return len(b), nil }

func (w *response) WriteHeader(status int) { w.status = status }
