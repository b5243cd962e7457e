package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/memory"
)

const testTimeout = 50 * time.Millisecond

// server is a Transport to buckets in this process. Its functions say what becomes of a batch or a
// ping; they may wait. Its own mutex guards what it counts.
type server struct {
	store *memory.Store
	send  func(context.Context, *Batch) error // before the batch is done; nil is at once
	ping  func(context.Context) error

	diagnoses bool // Reason lasts as long as its context

	mu     sync.Mutex
	sends  int
	pings  int
	inline int // sends by their caller
	groups []sentGroup
	log    strings.Builder
}

// sentGroup is a group that the server was sent.
type sentGroup struct {
	key     string
	op      bucket.Op
	charges int64
	first   bool
}

func (s *server) Send(ctx context.Context, b *Batch) error {
	s.mu.Lock()
	s.sends++
	if strings.Contains(string(debug.Stack()), "sendInline") {
		s.inline++
	}
	send := s.send
	s.mu.Unlock()
	if send != nil {
		if err := send(ctx, b); err != nil {
			for _, m := range b.Groups {
				m.Err = err
			}
			return err
		}
	}
	for _, m := range b.Groups {
		op := m.Op
		op.Charges = m.Charges
		s.store.Do(m.Key, m.Buckets, op, m.Found)
		s.mu.Lock()
		s.groups = append(s.groups, sentGroup{string(m.Key), m.Op, m.Charges, m.First})
		s.mu.Unlock()
	}
	return nil
}

func (s *server) Ping(ctx context.Context, key string, timeout time.Duration) error {
	s.mu.Lock()
	s.pings++
	ping := s.ping
	s.mu.Unlock()
	if !strings.HasPrefix(key, "name of ") || timeout != testTimeout {
		return fmt.Errorf("a ping to the server of %q within %s", key, timeout)
	}
	if ping == nil {
		return nil
	}
	return ping(ctx)
}

func (s *server) Reason(ctx context.Context, _ string, err error) (text, word string) {
	if s.diagnoses {
		<-ctx.Done()
	}
	return "because of: " + err.Error(), "word"
}

// Write takes a line of the log.
func (s *server) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(line)
}

// does changes what becomes of batches and pings from now on.
func (s *server) does(send func(context.Context, *Batch) error, ping func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send, s.ping = send, ping
}

func (s *server) count() (sends, pings int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sends, s.pings
}

// lines returns how many lines of the log have a text.
func (s *server) lines(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.log.String(), text)
}

const (
	logOpen = "Redis unavailable, circuit breaker open"
	logBack = "Redis is back"
)

// newServer returns a dispatcher and its server, which ends with the test.
func newServer(t *testing.T, opts ...func(*Server)) (*Dispatcher, *server) {
	s := &server{store: memory.New(1024)}
	to := Server{Transport: s, Log: slog.New(slog.NewTextHandler(s, nil)), Addr: "server"}
	for _, opt := range opts {
		opt(&to)
	}
	d := New(testTimeout, to)
	t.Cleanup(d.Close)
	return d, s
}

func inline(s *Server) { s.Inline = true }

// occupy fills all slots with batches that wait until the returned function is called. What
// becomes of the batches that follow may be given: they are sent before that function returns.
func occupy(t *testing.T, d *Dispatcher, s *server, next ...func(context.Context, *Batch) error) (release func()) {
	t.Helper()
	one := newBuckets(t, bucket.Token, 100)
	require.NoError(t, d.Do(t.Context(), newCall("known to answer", take(1, 1), one)))
	gate := make(chan struct{})
	s.does(func(context.Context, *Batch) error { <-gate; return nil }, nil)
	var all sync.WaitGroup
	for i := range d.slots.few {
		all.Go(func() { assert.NoError(t, d.Do(t.Context(), newCall(fmt.Sprint("occupies ", i), take(1, 1), one))) })
		synctest.Wait()
	}
	next = append(next, nil)
	return sync.OnceFunc(func() {
		s.does(next[0], nil)
		close(gate)
		all.Wait() // the test's context ends with it
	})
}
