package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/bench/internal/peers"
	"github.com/ginlimit/ginlimit/bench/internal/proxy"
	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// contestant is a library with a redis-server of its own; in each situation it gets a new client, limiter and engine.
type contestant struct {
	library  peers.Library
	server   *redisserver.Server
	engine   http.Handler
	requests atomic.Uint64 // so far; says whose turn it is
	redisCPU float64       // of its server at the end of the round before, in seconds
	url      string        // of its HTTP server, if the situation has one
	cleanup  []func()
}

// startAll starts a redis-server for each library.
func startAll(ctx context.Context, libraries []peers.Library) ([]*contestant, func(), error) {
	var all []*contestant
	end := func() {
		for _, c := range all {
			c.server.Close()
		}
	}
	for _, l := range libraries {
		server, err := redisserver.Start(ctx)
		if err != nil {
			end()
			return nil, nil, err
		}
		all = append(all, &contestant{library: l, server: server})
	}
	return all, end, nil
}

// setUp flushes the server and makes client, limiter and engine for a situation.
func (c *contestant) setUp(ctx context.Context, s situation) error {
	if err := errors.Join(c.server.Client.FlushAll(ctx).Err(), c.server.Client.ConfigResetStat(ctx).Err()); err != nil {
		return err
	}
	c.requests.Store(0)
	c.redisCPU = 0
	addr := c.server.Addr
	if s.distance > 0 {
		var end func()
		var err error
		if addr, end, err = proxy.Start(addr, s.distance); err != nil {
			return err
		}
		c.cleanup = append(c.cleanup, end)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr}) // as in the quickstart
	c.cleanup = append(c.cleanup, func() { _ = rdb.Close() })
	limiter, err := c.library.New(rdb, s.limit)
	if err != nil {
		return fmt.Errorf("%s: %w", c.library.Name, err)
	}
	c.cleanup = append(c.cleanup, limiter.Close)
	c.engine = peers.NewEngine(limiter.Handler)
	if s.tool != nil {
		return c.listen()
	}
	return nil
}

// tearDown ends all that setUp has made, the last first.
func (c *contestant) tearDown() {
	for len(c.cleanup) > 0 {
		last := len(c.cleanup) - 1
		c.cleanup[last]()
		c.cleanup = c.cleanup[:last]
	}
	c.engine, c.url = nil, ""
}
