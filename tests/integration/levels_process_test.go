package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// A process that serves requests, each of which holds a slot at three levels. It is this test program,
// started again. It reads commands as lines of JSON, answers each by a line, and appends to a file when
// it begins and ends to serve a request.

// The environment variables of such a process: the address of Redis, and the file.
const (
	levelsRedis = "GINLIMIT_LEVELS_REDIS"
	levelsLog   = "GINLIMIT_LEVELS_LOG"
)

// levels are the names of the keys under which a request counts, and how many of each may be in flight.
var levels = [3]struct {
	name  string
	slots int
	field string
}{{"key", 2, "X-Key"}, {"user", 3, "X-User"}, {"account", 4, "X-Account"}}

// lines are the two handlers of a process, whose policies have no queue, or one each. They share no slots.
var lines = [2]string{"at-once", "queued"}

const (
	levelsCallers = 8 // of each process
	levelsClients = 3 // of each level, named 0, 1 and 2
)

// clients are the keys of a request, one for each level.
type clients [len(levels)]string

// levelsCommand is one thing that such a process does: "hold" serves a request until "end", and "load"
// serves random ones until "stop".
type levelsCommand struct {
	Op   string
	ID   string // of a request
	Line int
	Of   clients
}

// levelsReply is what came of a command: the status of a request, or of how many that were random.
type levelsReply struct {
	Status   int
	Statuses map[int]int
}

// levelsServer is what runs in the process.
type levelsServer struct {
	router *gin.Engine
	file   *os.File
	number atomic.Int64 // of the newest request
	held   map[string]chan struct{}

	stops    atomic.Bool
	callers  sync.WaitGroup
	mu       sync.Mutex
	statuses map[int]int
}

// serveLevels is the program of such a process.
func serveLevels(addr, path string) {
	limiter, err := ginlimit.NewLimiter(redis.NewClient(&redis.Options{Addr: addr}), testkit.Patient(),
		ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithReplicas(1),
		ginlimit.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		log.Fatal(err)
	}
	s := levelsServer{router: gin.New(), held: map[string]chan struct{}{}}
	if s.file, err = os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		log.Fatal(err)
	}
	for _, line := range lines {
		var policies []*ginlimit.Policy
		for _, level := range levels {
			options := []ginlimit.PolicyOption{testkit.Key(level.field), ginlimit.InFlight(level.slots)}
			if line == "queued" {
				options = append(options, ginlimit.WithQueue(5, 100*time.Millisecond))
			}
			policy, err := limiter.Policy(line+" "+level.name, options...)
			if err != nil {
				log.Fatal(err)
			}
			policies = append(policies, policy)
		}
		s.router.GET("/"+line, ginlimit.AllOf(policies...), s.serve)
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c levelsCommand
		err := in.Decode(&c)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		if err := out.Encode(s.do(c)); err != nil {
			log.Fatal(err)
		}
	}
}

// levelsEntry is a line of the file: a request begins or ends.
type levelsEntry struct {
	Number int64
	Ends   bool
	At     time.Time
	Line   int
	Of     clients
}

// serve does what is in the context of a request. Both times in the file lie within the time for which
// the request holds its slots.
func (s *levelsServer) serve(c *gin.Context) {
	e := levelsEntry{Number: s.number.Add(1), At: time.Now(), Line: slices.Index(lines[:], c.Request.URL.Path[1:])}
	for i, level := range levels {
		e.Of[i] = c.GetHeader(level.field)
	}
	s.write(e)
	c.Request.Context().Value(s).(func())()
	e.Ends, e.At = true, time.Now()
	s.write(e)
}

func (s *levelsServer) write(e levelsEntry) {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = s.file.Write(append(line, '\n'))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// request makes a request, and returns the status of the response. If it is served, that does f.
func (s *levelsServer) request(line int, of clients, f func()) int {
	ctx := context.WithValue(context.Background(), s, f)
	req := httptest.NewRequest(http.MethodGet, "/"+lines[line], nil).WithContext(ctx)
	for i, level := range levels {
		req.Header.Set(level.field, of[i])
	}
	rec := httptest.NewRecorder()
	s.router.ServeHTTP(rec, req)
	return rec.Code
}

func (s *levelsServer) do(c levelsCommand) (r levelsReply) {
	switch c.Op {
	case "hold":
		began, end, status := make(chan struct{}), make(chan struct{}), make(chan int, 1)
		go func() { status <- s.request(c.Line, c.Of, func() { close(began); <-end }) }()
		select {
		case <-began:
			s.held[c.ID], r.Status = end, http.StatusOK
		case r.Status = <-status:
		}
	case "end":
		close(s.held[c.ID])
	case "load":
		s.stops.Store(false)
		s.statuses = map[int]int{}
		for range levelsCallers {
			s.callers.Go(s.call)
		}
	case "stop":
		s.stops.Store(true)
		s.callers.Wait()
		r.Statuses = s.statuses
	}
	return r
}

// call makes random requests until it is to stop.
func (s *levelsServer) call() {
	for !s.stops.Load() {
		var of clients
		for i := range of {
			of[i] = fmt.Sprint(rand.IntN(levelsClients))
		}
		status := s.request(rand.IntN(len(lines)), of, func() { pause(rand.N(8 * time.Millisecond)) })
		s.mu.Lock()
		s.statuses[status]++
		s.mu.Unlock()
		pause(rand.N(20 * time.Millisecond))
	}
}

// levelsProcess is such a process.
type levelsProcess struct {
	cmd *exec.Cmd
	in  *json.Encoder
	out *json.Decoder
	log string
	ids map[string]bool // of the requests that it holds
}

// startLevelsProcess starts a process that ends with the test.
func startLevelsProcess(t *testing.T, addr string) *levelsProcess {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	p := &levelsProcess{cmd: exec.Command(program), log: filepath.Join(t.TempDir(), "requests"), ids: map[string]bool{}}
	p.cmd.Env = append(os.Environ(), levelsRedis+"="+addr, levelsLog+"="+p.log)
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	p.in, p.out = json.NewEncoder(in), json.NewDecoder(out)
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may be dead, or stopped
		_ = p.cmd.Wait()
	})
	return p
}

// do makes a command.
func (p *levelsProcess) do(t *testing.T, c levelsCommand) (r levelsReply) {
	t.Helper()
	require.NoError(t, p.in.Encode(c))
	require.NoError(t, p.out.Decode(&r))
	return r
}

// hold begins a request of each line, which must be served.
func (p *levelsProcess) hold(t *testing.T, id string, of clients) {
	t.Helper()
	for i, line := range lines {
		c := levelsCommand{Op: "hold", ID: fmt.Sprint(id, i), Line: i, Of: of}
		require.Equal(t, http.StatusOK, p.do(t, c).Status, "%s, %v", line, of)
	}
	p.ids[id] = true
}

// end ends requests that the process holds.
func (p *levelsProcess) end(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		for i := range lines {
			p.do(t, levelsCommand{Op: "end", ID: fmt.Sprint(id, i)})
		}
		delete(p.ids, id)
	}
}

// load begins random requests.
func (p *levelsProcess) load(t *testing.T) {
	t.Helper()
	p.do(t, levelsCommand{Op: "load"})
}

// stop ends them, and returns how many responses had each status.
func (p *levelsProcess) stop(t *testing.T) map[int]int {
	t.Helper()
	return p.do(t, levelsCommand{Op: "stop"}).Statuses
}

// served is a request that a process has served.
type served struct {
	process int
	keys    [len(levels)]string // the name of each level and the client
	from    time.Time
	to      time.Time // zero if the process was still serving it
}

// requests reads what the process has served. The last line of the file may not be complete.
func (p *levelsProcess) requests(t *testing.T, process int) []*served {
	t.Helper()
	file, err := os.Open(p.log)
	require.NoError(t, err)
	defer file.Close()
	all := map[int64]*served{}
	for in := json.NewDecoder(file); ; {
		var e levelsEntry
		err := in.Decode(&e)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return slices.Collect(maps.Values(all))
		}
		require.NoError(t, err)
		if e.Ends {
			all[e.Number].to = e.At
			continue
		}
		r := &served{process: process, from: e.At}
		for i, level := range levels {
			r.keys[i] = lines[e.Line] + " " + level.name + " " + e.Of[i]
		}
		all[e.Number] = r
	}
}
