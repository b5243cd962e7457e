package main

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// proxy passes bytes on between clients and a server, until it is told to fail.
type proxy struct {
	Addr string

	delay   atomic.Int64 // of replies, in nanoseconds
	swallow atomic.Bool  // replies
	refuse  atomic.Bool  // new connections

	listener net.Listener
	server   atomic.Pointer[string]
	mu       sync.Mutex
	conns    map[net.Conn]bool
}

func startProxy(server string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{Addr: listener.Addr().String(), listener: listener, conns: map[net.Conn]bool{}}
	p.leadTo(server)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.pass(client)
		}
	}()
	return p, nil
}

// leadTo has new connections lead to a server.
func (p *proxy) leadTo(server string) { p.server.Store(&server) }

// pass passes bytes on until either side ends the connection.
func (p *proxy) pass(client net.Conn) {
	defer client.Close()
	if p.refuse.Load() {
		return
	}
	upstream, err := net.Dial("tcp", *p.server.Load())
	if err != nil {
		return
	}
	defer upstream.Close()
	p.mu.Lock()
	p.conns[client] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, client)
	}()
	go func() {
		_, _ = io.Copy(upstream, client)
		_ = upstream.Close()
	}()
	buffer := make([]byte, 1<<16)
	for {
		n, err := upstream.Read(buffer)
		if err != nil {
			return
		}
		time.Sleep(time.Duration(p.delay.Load()))
		if p.swallow.Load() {
			continue
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// cut ends every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for client := range p.conns {
		_ = client.Close()
	}
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.cut()
}
