package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// contestant is one way to decide.
type contestant struct {
	name  string
	start func(addr string, s situation) (decider, error)
}

// decider decides with a client of its own.
type decider struct {
	decide   func(ctx context.Context, clients []string) error // in one round trip
	pipeline bool                                              // on many clients together
	close    func()
}

// contestants returns all that the server can do.
func contestants(ctx context.Context, server *redisserver.Server) ([]contestant, error) {
	all := []contestant{
		{"`INCR` alone, for comparison", commands(func(ctx context.Context, p redis.Pipeliner, key string, _ int) {
			p.Incr(ctx, key)
		})},
		{"`INCR`, `EXPIRE NX`", commands(func(ctx context.Context, p redis.Pipeliner, key string, _ int) {
			p.Incr(ctx, key)
			p.ExpireNX(ctx, key, time.Hour)
		})},
		{"the smallest script", commands(func(ctx context.Context, p redis.Pipeliner, key string, _ int) {
			p.EvalSha(ctx, smallest.Hash(), []string{key}, time.Hour.Milliseconds())
		})},
		{"ginlimit, fixed window", limiter(ginlimit.FixedWindow)},
		{"ginlimit, token bucket", limiter(ginlimit.TokenBucket)},
	}
	known, err := server.Client.Do(ctx, "COMMAND", "INFO", "INCREX").Slice()
	if err == nil && len(known) == 1 && known[0] != nil {
		all = append(all, contestant{"`INCREX`",
			commands(func(ctx context.Context, p redis.Pipeliner, key string, limit int) {
				p.Do(ctx, "INCREX", key, "UBOUND", limit, "EX", 3600, "ENX")
			})})
	}
	return all, errors.Join(err, smallest.Load(ctx, server.Client).Err())
}

// smallest counts a window, and says when it ends.
var smallest = redis.NewScript(`local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return n`)

// commands decides by commands for each client, in a pipeline.
func commands(add func(ctx context.Context, p redis.Pipeliner, key string, limit int)) func(string,
	situation) (decider, error) {
	return func(addr string, s situation) (decider, error) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		decide := func(ctx context.Context, clients []string) error {
			p := rdb.Pipeline()
			for _, client := range clients {
				add(ctx, p, "limit:"+client, s.limit)
			}
			_, err := p.Exec(ctx)
			return err
		}
		return decider{decide, true, func() { _ = rdb.Close() }}, nil
	}
}

// limiter decides by ginlimit.
func limiter(algorithm ginlimit.Algorithm) func(string, situation) (decider, error) {
	return func(addr string, s situation) (decider, error) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		l, err := ginlimit.NewLimiter(rdb, ginlimit.WithTimeout(5*time.Second))
		if err != nil {
			return decider{}, err
		}
		limit := ginlimit.PerHour(s.limit).WithAlgorithm(algorithm)
		if algorithm == ginlimit.TokenBucket { // nearly nothing flows back meanwhile
			limit = ginlimit.PerHour(1).WithBurst(s.limit)
		}
		policy, err := l.Policy("limit", limit,
			ginlimit.WithFailureMode(ginlimit.FailClosed))
		decide := func(ctx context.Context, clients []string) error {
			_, err := policy.Allow(ctx, clients[0])
			return err
		}
		return decider{decide, false, func() { _ = l.Close(); _ = rdb.Close() }}, err
	}
}

// run decides for a time, and returns how often.
func run(ctx context.Context, d decider, s situation, length time.Duration) (int64, error) {
	callers, each := s.callers, 1
	if s.pipeline && d.pipeline {
		callers, each = each, callers
	}
	var next, decided atomic.Int64
	failed := make([]error, callers)
	end := time.Now().Add(length)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			clients := make([]string, each)
			for failed[i] == nil && time.Now().Before(end) {
				for j := range clients {
					clients[j] = client(int(next.Add(1)) * 7919 % s.clients)
				}
				failed[i] = d.decide(ctx, clients)
				decided.Add(int64(each))
			}
		})
	}
	all.Wait()
	return decided.Load(), errors.Join(failed...)
}
