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
	if strings.Contains(string(debug.Stack()), ".(*Dispatcher).Do(") {
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

// sharedBuckets returns a limit of a burst, and what tenants hold of it.
func sharedBuckets(t *testing.T, burst int64) []bucket.Bucket {
	limit := newBuckets(t, bucket.Token, burst)[0]
	return []bucket.Bucket{limit, bucket.NewTenants(&limit)}
}

// ofTenant is a call that takes tokens of a key for a tenant.
func ofTenant(name string, weight, charges int64, buckets []bucket.Bucket) *Call {
	op := take(charges, 1)
	op.Tenant = bucket.Tenant{Name: name, Weight: weight}
	return newCall("k", op, buckets)
}

func groupsOf(calls ...*Call) []*Group {
	b := newBatch()
	b.calls = calls
	b.coalesce()
	return b.Groups
}

// TestTenantsShareAGroup if a tenant has one weight.
func TestTenantsShareAGroup(t *testing.T) {
	t.Parallel()
	shared := sharedBuckets(t, 100)
	for name, row := range map[string]struct {
		calls  []*Call
		groups int
	}{
		"one tenant":            {[]*Call{ofTenant("a", 1, 1, shared), ofTenant("a", 1, 2, shared)}, 1},
		"several":               {[]*Call{ofTenant("a", 1, 1, shared), ofTenant("b", 2, 1, shared)}, 1},
		"another weight":        {[]*Call{ofTenant("a", 1, 1, shared), ofTenant("a", 2, 1, shared)}, 2},
		"shared and not shared": {[]*Call{ofTenant("a", 1, 1, shared), newCall("k", take(1, 1), shared[:1])}, 2},
	} {
		require.Len(t, groupsOf(row.calls...), row.groups, name)
	}
}

// TestAGroupHasFewTenants, so that no call holds Redis up; but any number of calls of these.
func TestAGroupHasFewTenants(t *testing.T) {
	t.Parallel()
	shared := sharedBuckets(t, 100)
	var calls []*Call
	for i := range 3*maxTenants + 1 {
		calls = append(calls, ofTenant(fmt.Sprint(i), 1, 1, shared), ofTenant(fmt.Sprint(i), 1, 1, shared))
	}
	groups := groupsOf(calls...)
	require.Len(t, groups, 4)
	for _, g := range groups {
		require.LessOrEqual(t, len(g.Tenants()), maxTenants)
	}
}

// TestChargesOfAGroupFitTwoBytes, as they are sent. A lone call may make any number of charges.
func TestChargesOfAGroupFitTwoBytes(t *testing.T) {
	t.Parallel()
	shared := sharedBuckets(t, 1_000_000)
	for second, groups := range map[int64]int{1: 1, 65_534: 1, 65_535: 2} {
		require.Len(t, groupsOf(ofTenant("a", 1, 1, shared), ofTenant("b", 1, second, shared)), groups, second)
	}
	all := groupsOf(ofTenant("a", 1, 70_000, shared), ofTenant("a", 1, 1, shared))
	require.Len(t, all, 2)
	require.EqualValues(t, 70_000, all[0].Charges)
}

// TestRunsOfTenants are their charges in the order of the calls.
func TestRunsOfTenants(t *testing.T) {
	t.Parallel()
	shared := sharedBuckets(t, 100)
	group := groupsOf(ofTenant("a", 1, 1, shared), ofTenant("a", 1, 2, shared), ofTenant("b", 3, 1, shared),
		ofTenant("a", 1, 4, shared))[0]
	all, runs := group.Tenants(), group.Runs()
	require.Equal(t, []bucket.Tenant{{Name: "a", Weight: 1}, {Name: "b", Weight: 3}}, all)
	require.Equal(t, []Run{{0, 3}, {1, 1}, {0, 4}}, runs)
	require.EqualValues(t, 8, group.Charges)

	require.Empty(t, groupsOf(newCall("k", take(0, 1), shared))[0].Tenants(), "a probe has no tenant")
	one := groupsOf(ofTenant("a", 1, 1, shared), ofTenant("a", 1, 2, shared))[0]
	require.Len(t, one.Tenants(), 1)
	require.Equal(t, []Run{{0, 3}}, one.Runs())
}

// TestTenantsOfAGroupAreAnsweredInOrder: each call finds what those before it have left, of the bucket and
// of its tenant's share.
func TestTenantsOfAGroupAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	shared := sharedBuckets(t, 8)
	calls := []*Call{
		ofTenant("a", 1, 1, shared), ofTenant("a", 1, 3, shared), ofTenant("a", 1, 1, shared),
		ofTenant("b", 1, 1, shared), ofTenant("b", 1, 2, shared), ofTenant("a", 1, 1, shared), ofTenant("c", 1, 1, shared),
	}
	group := groupsOf(calls...)[0]
	group.Found = []bucket.State{{}, {}}
	for _, tenant := range group.Tenants() {
		group.FoundTenant(bucket.State{Shares: &bucket.Shares{Finish: bucket.NoFinish, Weight: tenant.Weight}})
	}
	group.distribute(time.Now(), time.Now())
	var made, room []int64
	for _, c := range calls {
		room = append(room, c.Buckets[0].Remaining(c.States[0].Level))
		fits := c.Buckets[0].Fits(c.States[0], c.Op.Charges, 1)
		made = append(made, c.Buckets[1].Fits(c.States[1], fits, 1))
	}
	require.Equal(t, []int64{1, 3, 0, 1, 1, 0, 1}, made, "a holds 4 of 8, then b 2 of the 4 that are free, then c one")
	require.Equal(t, []int64{8, 7, 4, 4, 3, 2, 2}, room)
}

// TestATenantAllocatesNoMoreBesideMany: what a call allocates does not grow with the tenants of its group.
func TestATenantAllocatesNoMoreBesideMany(t *testing.T) {
	shared := sharedBuckets(t, 1<<20)
	each := func(tenants int) float64 {
		calls := make([]*Call, tenants)
		for i := range calls {
			calls[i] = ofTenant(fmt.Sprint(i), 1, 1, shared)
		}
		return testing.AllocsPerRun(3, func() {
			group := groupsOf(calls...)[0]
			group.Found = []bucket.State{{}, {}}
			for range group.Tenants() {
				group.FoundTenant(bucket.State{Shares: &bucket.Shares{Finish: bucket.NoFinish, Weight: 1}})
			}
			for c := group.Call; c != nil; c = c.next {
				group.tenants.choose(group, c)
				group.charge(c)
			}
			for c := group.Call; c != nil; {
				c, c.next = c.next, nil
			}
		}) / float64(tenants)
	}
	require.Less(t, each(1000), 2*each(20)+1)
}

// inBubble runs a test in simulated time. What is left running when it ends is a fault.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

func inBubbleRun(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

// Idle reports whether nothing waits and nothing is in flight.
func (d *Dispatcher) Idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unusedLocked() && !d.probing
}
