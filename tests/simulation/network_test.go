package simulation_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// simNetwork is the network between the processes of a simulation and its nodes: TCP connections in memory, on the
// bubble's clock. Bytes arrive in order, after the latency and some jitter. Its mutex guards all of its connections.
type simNetwork struct {
	latency, jitter time.Duration
	seed            uint64
	serve           func(node int, conn net.Conn) // has a node serve a connection

	mu      sync.Mutex
	conns   map[*simConn]bool         // the processes' ends
	dialled uint64                    // connections so far
	down    map[int]bool              // nodes that are not running: they refuse connections
	frozen  map[int]bool              // nodes that do not read
	blocked map[simPath]bool          // where bytes do not pass, in either direction, until they may
	dead    map[int]bool              // processes that nothing reaches any more
	slow    map[simPath]time.Duration // additional latency
}

// simPath is from a process to a node, and back.
type simPath struct{ process, node int }

func newSimNetwork(p *simPlan, serve func(node int, conn net.Conn)) *simNetwork {
	return &simNetwork{
		latency: p.latency, jitter: p.jitter, seed: p.seed, serve: serve,
		conns: map[*simConn]bool{}, down: map[int]bool{}, frozen: map[int]bool{},
		blocked: map[simPath]bool{}, dead: map[int]bool{}, slow: map[simPath]time.Duration{},
	}
}

// simConn is one end of a connection.
type simConn struct {
	network *simNetwork
	simPath
	client bool // the process' end, not the server's
	peer   *simConn
	random *rand.Rand

	in       []simSegment
	failure  error         // of a read, once everything is read
	closed   bool          // by this end
	vanish   bool          // what this end writes is lost
	deadline time.Time     // of a read
	changed  chan struct{} // closed when a read must look again
}

// simSegment is bytes on their way.
type simSegment struct {
	data []byte
	at   time.Time // when they arrive
}

// change does f behind the network's lock, and has every read look again.
func (n *simNetwork) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	for c := range n.conns {
		c.wakeLocked()
		c.peer.wakeLocked()
	}
}

func (c *simConn) wakeLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// dial connects a process with a node.
func (n *simNetwork) dial(ctx context.Context, path simPath) (net.Conn, error) {
	n.mu.Lock()
	n.dialled++
	random := rand.New(rand.NewPCG(n.seed, n.dialled))
	n.mu.Unlock()
	for { // at least one round trip; a SYN is sent again until it passes
		n.mu.Lock()
		wait := 2 * n.delayLocked(path, random)
		n.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		n.mu.Lock()
		if !n.blockedLocked(path) {
			break
		}
		n.mu.Unlock()
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer n.mu.Unlock()
	if n.down[path.node] {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	here := &simConn{network: n, simPath: path, client: true, random: random, changed: make(chan struct{})}
	there := &simConn{network: n, simPath: path, random: random, changed: make(chan struct{}), peer: here}
	here.peer = there
	n.conns[here] = true
	n.serve(path.node, there)
	return here, nil
}

func (n *simNetwork) delayLocked(path simPath, random *rand.Rand) time.Duration {
	return n.latency + time.Duration(random.Int64N(int64(n.jitter)+1)) + n.slow[path]
}

// passesLocked reports whether bytes may arrive at this end now.
func (c *simConn) passesLocked() bool {
	return !c.network.blockedLocked(c.simPath) && (c.client || !c.network.frozen[c.node])
}

func (n *simNetwork) blockedLocked(path simPath) bool { return n.blocked[path] || n.dead[path.process] }

func (c *simConn) Read(p []byte) (int, error) {
	n := c.network
	for {
		n.mu.Lock()
		now, wait := time.Now(), time.Duration(-1)
		switch {
		case c.closed:
			n.mu.Unlock()
			return 0, net.ErrClosed
		case !c.deadline.IsZero() && !now.Before(c.deadline):
			n.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(c.in) > 0 && c.passesLocked() && !now.Before(c.in[0].at):
			read := copy(p, c.in[0].data)
			if c.in[0].data = c.in[0].data[read:]; len(c.in[0].data) == 0 {
				c.in = c.in[1:]
			}
			n.mu.Unlock()
			return read, nil
		case len(c.in) == 0 && c.failure != nil:
			n.mu.Unlock()
			return 0, c.failure
		}
		if !c.deadline.IsZero() {
			wait = c.deadline.Sub(now)
		}
		if len(c.in) > 0 && c.passesLocked() {
			if arrives := c.in[0].at.Sub(now); wait < 0 || arrives < wait {
				wait = arrives
			}
		}
		changed := c.changed
		n.mu.Unlock()
		if wait < 0 {
			<-changed
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (c *simConn) Write(p []byte) (int, error) {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.failure != nil:
		return 0, syscall.EPIPE
	case c.vanish:
		return len(p), nil
	}
	at := time.Now().Add(c.network.delayLocked(c.simPath, c.random))
	if last := len(c.peer.in) - 1; last >= 0 && at.Before(c.peer.in[last].at) {
		at = c.peer.in[last].at
	}
	c.peer.in = append(c.peer.in, simSegment{append([]byte(nil), p...), at})
	c.peer.wakeLocked()
	return len(p), nil
}

// Close ends the connection. The other end reads what is on its way first.
func (c *simConn) Close() error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed, c.in = true, nil
	if !c.vanish && c.peer.failure == nil {
		c.peer.failure = io.EOF
	}
	if c.peer.closed {
		delete(c.network.conns, c)
		delete(c.network.conns, c.peer)
	}
	c.wakeLocked()
	c.peer.wakeLocked()
	return nil
}

// resetLocked cuts the connection: what is on its way is lost.
func (c *simConn) resetLocked() {
	for _, end := range []*simConn{c, c.peer} {
		end.in, end.failure = nil, syscall.ECONNRESET
		end.wakeLocked()
	}
}

// openLocked returns the connections on some paths.
func (n *simNetwork) openLocked(paths []simPath) (open []*simConn) {
	for c := range n.conns {
		if !c.closed && c.failure == nil && slices.Contains(paths, c.simPath) {
			open = append(open, c)
		}
	}
	return open
}

func (c *simConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) } // no write waits

func (c *simConn) SetReadDeadline(t time.Time) error {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.deadline = t
	c.wakeLocked()
	return nil
}

func (c *simConn) SetWriteDeadline(time.Time) error { return nil }
func (c *simConn) LocalAddr() net.Addr              { return simAddr }
func (c *simConn) RemoteAddr() net.Addr             { return simAddr }

var simAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: simPort}

// SyscallConn implements [syscall.Conn]: go-redis looks at the socket of an idle connection to see whether it was cut.
func (c *simConn) SyscallConn() (syscall.RawConn, error) {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	switch {
	case len(c.in) > 0 && c.passesLocked() && !time.Now().Before(c.in[0].at):
		return simSocket(simSockets.readable), nil
	case c.closed || c.failure != nil:
		return simSocket(simSockets.ended), nil
	}
	return simSocket(simSockets.silent), nil
}

// simSockets are sockets in each state that go-redis can find one in.
var simSockets struct{ silent, readable, ended int }

// openSimSockets makes them. They stay open, as all simulations share them.
var openSimSockets = sync.OnceValue(func() error {
	for _, socket := range []*int{&simSockets.silent, &simSockets.readable, &simSockets.ended} {
		pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		*socket = pair[0]
		switch socket {
		case &simSockets.readable:
			_, err = syscall.Write(pair[1], []byte{'x'})
		case &simSockets.ended:
			err = syscall.Close(pair[1])
		}
		if err != nil {
			return err
		}
	}
	return nil
})

func requireSimSockets(t testing.TB) { require.NoError(t, openSimSockets()) }

// simSocket is a file descriptor that is only looked at.
type simSocket int

func (s simSocket) Read(f func(fd uintptr) bool) error  { f(uintptr(s)); return nil }
func (s simSocket) Write(f func(fd uintptr) bool) error { f(uintptr(s)); return nil }
func (s simSocket) Control(f func(fd uintptr)) error    { f(uintptr(s)); return nil }
