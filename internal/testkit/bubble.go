package testkit

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// Bubble is a Redis in a bubble of testing/synctest, and a client of it. Both go by the bubble's clock.
type Bubble struct {
	Mini  *miniredis.Miniredis
	Redis *redis.Client
	Late  atomic.Bool // every reply is later than any timeout
}

// InBubble runs a test in a bubble with a Redis, beside others.
func InBubble(t *testing.T, test func(t *testing.T, b *Bubble)) {
	t.Helper()
	InSynctest(t, func(t *testing.T) { test(t, NewBubble(t)) })
}

// NewBubble returns the Redis of a bubble that the test is in.
func NewBubble(t *testing.T) *Bubble {
	b := &Bubble{Mini: miniredis.NewMiniRedis()}
	t.Cleanup(b.Mini.Close)
	t.Cleanup(func() { time.Sleep(2 * time.Minute) }) // until calls that are late have ended, all limiters being closed
	b.Mini.ClockTTL(true)
	b.Redis = b.Connect(t)
	return b
}

// RunInBubble is [InBubble] of a subtest.
func RunInBubble(t *testing.T, name string, test func(t *testing.T, b *Bubble)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { InBubble(t, test) })
}

// InSynctest runs a test in a bubble, beside others.
func InSynctest(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// RunSynctest is [InSynctest] of a subtest.
func RunSynctest(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { InSynctest(t, test) })
}

// Run runs a subtest beside others.
func Run(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		test(t)
	})
}

// Dial is the Dialer of a client in the bubble.
func (b *Bubble) Dial(context.Context, string, string) (net.Conn, error) {
	conn, err := b.Mini.Dial()
	if err != nil {
		return nil, err
	}
	c := &bufferedConn{Conn: conn, written: make(chan []byte, 1024)}
	go c.flush()
	return c, nil
}

// bufferedConn has room for what is written, as a connection of a network has: without it, a server that answers
// while a client writes a long pipeline waits for that client, which waits for the server.
type bufferedConn struct {
	net.Conn
	written chan []byte
	mu      sync.Mutex // guards closed
	closed  bool
}

func (c *bufferedConn) flush() {
	for text := range c.written {
		_, _ = c.Conn.Write(text) // once it is closed nobody reads
	}
}

func (c *bufferedConn) Write(text []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	c.written <- bytes.Clone(text)
	return len(text), nil
}

func (c *bufferedConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		close(c.written)
	}
	return c.Conn.Close()
}

func (c *bufferedConn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *bufferedConn) SetWriteDeadline(time.Time) error { return nil }

// Connect returns one more client.
func (b *Bubble) Connect(t testing.TB) *redis.Client { return b.connect(t, b.Dial) }

// ConnectInline is [Bubble.Connect], with a client whose callers send their calls themselves.
func (b *Bubble) ConnectInline(t testing.TB) *redis.Client {
	return b.connect(t, redisstore.KeepsDeadlines(b.Dial))
}

func (b *Bubble) connect(t testing.TB, dial redisstore.Dialer) *redis.Client {
	// a name would be looked up, which a bubble cannot do
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", Dialer: dial})
	rdb.AddHook(EveryCall(func(send func() error) error {
		if b.Late.Load() {
			time.Sleep(time.Second / 4)
		}
		return send()
	}))
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}
