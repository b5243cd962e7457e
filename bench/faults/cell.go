package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// phases are how long requests are sent before the fault, during it, and after it.
type phases struct{ before, during, after time.Duration }

func (p phases) all() time.Duration { return p.before + p.during + p.after }

// run has a library go through a fault, while clients send requests.
func (c contestant) run(ctx context.Context, f fault, p phases) (outcome, error) {
	s, err := f.run(ctx)
	if err != nil {
		return outcome{}, err
	}
	defer s.close()
	limited, err := c.new(s.addr)
	if err != nil {
		return outcome{}, err
	}
	send, end, err := listen(limited)
	if err != nil {
		return outcome{}, err
	}
	defer end()
	sendFreely, end, err := listen(serveHTTP(done, func() {}))
	if err != nil {
		return outcome{}, err
	}
	defer end()
	if err := await(ctx, func() (bool, error) { return c.counted(ctx, s.server.Client, "warm-up", send) }); err != nil {
		return outcome{}, fmt.Errorf("no decision before the fault: %w", err)
	}
	var found, free []seen
	var sending sync.WaitGroup
	sending.Go(func() { found = load(clients(), p.all(), send) })
	sending.Go(func() { free = load([]client{{"free", 20 * time.Millisecond}}, p.all(), sendFreely) })
	time.Sleep(p.before)
	err = s.begin(ctx)
	if !f.once {
		time.Sleep(p.during)
	}
	err = errors.Join(err, s.end(ctx))
	back := c.awaitRedis(ctx, s.counts.Client, send)
	sending.Wait()
	o := judge(clients(), found, p.before)
	o.back, o.free = back, tooks(free, p.before)
	return o, err
}

// listen serves an app, and returns what sends requests to it.
func listen(a app) (send func(client string) answer, end func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.close()
		return nil, nil, err
	}
	go func() { _ = a.serve(listener) }()
	send, disconnect := sender(listener.Addr().String())
	return send, func() { disconnect(); a.close() }, nil
}

// counted sends a request of a new client, and reports whether it was admitted and Redis counted it.
func (c contestant) counted(ctx context.Context, rdb *redis.Client, client string, send func(string) answer) (
	bool, error) {
	if a := send(client); a.status != http.StatusOK || a.local {
		return false, nil
	}
	keys, err := rdb.Keys(ctx, c.key(client)).Result()
	return len(keys) > 0, err
}

// awaitRedis sends requests of new clients until Redis has counted one, and returns how long that took.
func (c contestant) awaitRedis(ctx context.Context, rdb *redis.Client, send func(string) answer) time.Duration {
	var sending sync.WaitGroup
	var back atomic.Int64
	back.Store(int64(patience))
	begin := time.Now()
	for i := 0; time.Since(begin) < time.Duration(back.Load()); i++ {
		sending.Go(func() {
			if counted, err := c.counted(ctx, rdb, fmt.Sprintf("back-%04d", i), send); err != nil || !counted {
				return
			}
			took := int64(time.Since(begin))
			for least := back.Load(); took < least && !back.CompareAndSwap(least, took); least = back.Load() {
			}
		})
		time.Sleep(10 * time.Millisecond)
	}
	sending.Wait()
	return time.Duration(back.Load())
}
