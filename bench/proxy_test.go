package bench

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// startProxy passes connections on to a server, each way in half of the added round trip.
func startProxy(tb testing.TB, server string, roundTrip time.Duration) string {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var open sync.WaitGroup
	tb.Cleanup(func() { _ = listener.Close(); open.Wait() })
	open.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			open.Go(func() { passOn(upstream, client, roundTrip/2) })
			open.Go(func() { passOn(client, upstream, roundTrip/2) })
		}
	})
	return listener.Addr().String()
}

// passOn copies from one connection to another, all of it late by the same time.
func passOn(to, from net.Conn, late time.Duration) {
	type piece struct {
		data []byte
		due  time.Time
	}
	pieces := make(chan piece, 1<<12)
	go func() {
		defer close(pieces)
		for {
			data := make([]byte, 1<<14)
			n, err := from.Read(data)
			if n > 0 {
				pieces <- piece{data[:n], time.Now().Add(late)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		<-time.After(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	_ = to.Close()
	for range pieces {
		_ = io.Discard // what comes after the end
	}
}
