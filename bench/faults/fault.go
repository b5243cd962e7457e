package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// fault is what happens to Redis while requests are sent.
type fault struct {
	name     string
	once     bool // it has no length
	harmless bool // no library decides otherwise, so the page has no row of it
	start    func(context.Context, *site) error
}

// site is a Redis of one library's own, with a fault that has not begun.
type site struct {
	addr       string // where the library finds Redis
	server     *redisserver.Server
	counts     *redisserver.Server // after the fault
	begin, end func(context.Context) error
	ends       []func()
}

func (s *site) close() {
	for i := len(s.ends) - 1; i >= 0; i-- {
		s.ends[i]()
	}
}

// faults are the rows of the tables.
func faults() []fault {
	return []fault{
		{"frozen (SIGSTOP)", false, false, frozen},
		{"replies lost", false, false, swallowed},
		{"killed, started again empty", false, false, killed},
		{"killed, a replica takes over", false, false, failedOver},
		{"every connection cut once", true, false, cut},
		{"replies 200 ms late", false, false, slow},
		{"a script does not end (BUSY)", false, false, busy},
		{"memory full (OOM)", false, false, full},
		{"read-only replica (READONLY)", false, false, readOnly},
		{name: "scripts flushed", once: true, harmless: true, start: flushed},
	}
}

// run starts the site of a fault.
func (f fault) run(ctx context.Context) (*site, error) {
	s := &site{end: func(context.Context) error { return nil }}
	if err := f.start(ctx, s); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// serve starts a server, with more options of redis-server.
func (s *site) serve(ctx context.Context, args ...string) error {
	server, err := redisserver.Start(ctx, args...)
	if err != nil {
		return err
	}
	s.ends = append(s.ends, server.Close)
	s.addr, s.server, s.counts = server.Addr, server, server
	return nil
}

// proxy starts a server behind a proxy.
func (s *site) proxy(ctx context.Context) (*proxy, error) {
	if err := s.serve(ctx); err != nil {
		return nil, err
	}
	p, err := startProxy(s.addr)
	if err != nil {
		return nil, err
	}
	s.addr, s.ends = p.Addr, append(s.ends, p.close)
	return p, nil
}

func frozen(ctx context.Context, s *site) error {
	s.begin = func(context.Context) error { return s.server.Signal(syscall.SIGSTOP) }
	s.end = func(context.Context) error { return s.server.Signal(syscall.SIGCONT) }
	return s.serve(ctx)
}

func swallowed(ctx context.Context, s *site) error {
	p, err := s.proxy(ctx)
	s.begin = func(context.Context) error { p.swallow.Store(true); return nil }
	s.end = func(context.Context) error { p.swallow.Store(false); return nil }
	return err
}

func killed(ctx context.Context, s *site) error {
	s.begin = func(context.Context) error { s.server.Kill(); return nil }
	s.end = func(ctx context.Context) error { return s.server.Restart(ctx) }
	return s.serve(ctx)
}

// failedOver has a replica take the place of a killed master, behind the same address.
func failedOver(ctx context.Context, s *site) error {
	p, err := s.proxy(ctx)
	if err != nil {
		return err
	}
	master, admin := s.server, s.server.Client
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		return err
	}
	if err := admin.ConfigSet(ctx, "repl-diskless-sync-delay", "0").Err(); err != nil {
		return err
	}
	replica, err := redisserver.Start(ctx, "--replicaof", host+" "+port)
	if err != nil {
		return err
	}
	s.ends, s.counts = append(s.ends, replica.Close), replica
	s.begin = func(context.Context) error {
		p.refuse.Store(true)
		master.Kill()
		return nil
	}
	s.end = func(ctx context.Context) error {
		err := replica.Client.ReplicaOf(ctx, "NO", "ONE").Err()
		p.leadTo(replica.Addr)
		p.refuse.Store(false)
		return err
	}
	return await(ctx, func() (bool, error) {
		info, err := replica.Client.Info(ctx, "replication").Result()
		return strings.Contains(info, "master_link_status:up"), err
	})
}

func cut(ctx context.Context, s *site) error {
	p, err := s.proxy(ctx)
	s.begin = func(context.Context) error { p.cut(); return nil }
	return err
}

func slow(ctx context.Context, s *site) error {
	p, err := s.proxy(ctx)
	s.begin = func(context.Context) error { p.delay.Store(int64(200 * time.Millisecond)); return nil }
	s.end = func(context.Context) error { p.delay.Store(0); return nil }
	return err
}

// busy runs a script that does not end. Redis says so after 10 ms, instead of 5 s.
func busy(ctx context.Context, s *site) error {
	var other *redis.Client
	s.begin = func(context.Context) error {
		go other.Eval(context.WithoutCancel(ctx), "while true do end", nil)
		return nil
	}
	s.end = func(ctx context.Context) error { return s.server.Client.ScriptKill(ctx).Err() }
	if err := s.serve(ctx, "--busy-reply-threshold", "10"); err != nil {
		return err
	}
	other = redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1, ReadTimeout: -1})
	s.ends = append(s.ends, func() { _ = other.Close() })
	return nil
}

func full(ctx context.Context, s *site) error {
	memory := func(bytes string) func(context.Context) error {
		return func(ctx context.Context) error { return s.server.Client.ConfigSet(ctx, "maxmemory", bytes).Err() }
	}
	s.begin, s.end = memory("1"), memory("0")
	return s.serve(ctx, "--maxmemory-policy", "noeviction")
}

// readOnly makes the server a replica of a master that it does not reach, as a failover does to the old master. It
// keeps its data.
func readOnly(ctx context.Context, s *site) error {
	follow := func(host, port string) func(context.Context) error {
		return func(ctx context.Context) error { return s.server.Client.ReplicaOf(ctx, host, port).Err() }
	}
	s.begin, s.end = follow("127.0.0.1", "1"), follow("NO", "ONE")
	return s.serve(ctx)
}

func flushed(ctx context.Context, s *site) error {
	s.begin = func(ctx context.Context) error { return s.server.Client.ScriptFlush(ctx).Err() }
	return s.serve(ctx)
}

// await asks until it is so, for ten seconds at most.
func await(ctx context.Context, isSo func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		so, err := isSo()
		if so {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
