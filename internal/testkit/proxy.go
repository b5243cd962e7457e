package testkit

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Proxy passes bytes on between clients and a server.
type Proxy struct {
	Delay   atomic.Int64 // of what the server says, in nanoseconds
	Swallow atomic.Bool  // what the server says
	Cut     atomic.Bool  // every connection

	Swallowed atomic.Int64 // how often

	server atomic.Pointer[string]
	mu     sync.Mutex
	conns  map[net.Conn]bool
}

// StartProxy starts a proxy of a server and returns its address.
func StartProxy(t *testing.T, server string) (*Proxy, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{conns: map[net.Conn]bool{}}
	p.Switch(server)
	t.Cleanup(func() {
		_ = l.Close()
		p.CutAll()
	})
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	return p, l.Addr().String()
}

// Switch has new connections lead to another server. The others stay.
func (p *Proxy) Switch(server string) { p.server.Store(&server) }

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	upstream, err := net.Dial("tcp", *p.server.Load())
	if err != nil || p.Cut.Load() {
		return
	}
	defer upstream.Close()
	p.mu.Lock()
	p.conns[client] = true
	p.mu.Unlock()
	go func() {
		_, _ = io.Copy(upstream, client)
		_ = upstream.Close()
	}()
	buf := make([]byte, 1<<16)
	for {
		n, err := upstream.Read(buf)
		if err != nil {
			return
		}
		if d := time.Duration(p.Delay.Load()); d > 0 {
			<-time.After(d)
		}
		if p.Swallow.Load() {
			p.Swallowed.Add(1)
			continue
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// CutAll cuts every connection, and refuses new ones until Cut is false.
func (p *Proxy) CutAll() {
	p.Cut.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
		delete(p.conns, conn)
	}
}
