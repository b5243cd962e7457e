// Package redisserver starts redis-servers and reads what they have done.
package redisserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a redis-server of the benchmark's own.
type Server struct {
	Addr   string
	Client *redis.Client // to look at the server and to flush it, not for what is measured

	dir     string
	command []string
	process *os.Process
	exited  chan struct{}
}

// Start starts a redis-server, or what REDIS_SERVER names, without persistence. More arguments are its options. If
// there is none to start, the error is [exec.ErrNotFound].
func Start(ctx context.Context, args ...string) (*Server, error) {
	binary, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"))
	if err != nil {
		return nil, fmt.Errorf("apt-get install redis-server: %w", err)
	}
	for range 5 { // another process may take the port first
		var s *Server
		if s, err = launch(ctx, binary, args); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func launch(ctx context.Context, binary string, args []string) (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := listener.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	if err := listener.Close(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redis-server")
	if err != nil {
		return nil, err
	}
	own := []string{binary, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}
	s := &Server{Addr: addr, Client: redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1}),
		dir: dir, command: append(own, args...)}
	if err := s.run(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// run starts the process, and waits until it answers.
func (s *Server) run(ctx context.Context) error {
	cmd, exited := exec.Command(s.command[0], s.command[1:]...), make(chan struct{})
	if err := cmd.Start(); err != nil {
		return err
	}
	s.process, s.exited = cmd.Process, exited
	go func() { _ = cmd.Wait(); close(exited) }()
	return s.awaitAnswer(ctx)
}

// awaitAnswer waits until this process, and no other, answers at the address.
func (s *Server) awaitAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", s.Addr)
		if err == nil {
			_ = conn.Close()
			pid, err := Info(ctx, s.Client, "server", `process_id:(\d+)`)
			if err == nil && int(pid) == s.process.Pid {
				return nil
			}
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-s.exited:
			return errors.New("redis-server has exited")
		case <-ctx.Done():
			return fmt.Errorf("redis-server does not start: %w", ctx.Err())
		}
	}
}

// Signal sends a signal to the server.
func (s *Server) Signal(signal os.Signal) error { return s.process.Signal(signal) }

// Kill ends the process, as SIGKILL does.
func (s *Server) Kill() {
	if s.process != nil {
		_ = s.process.Kill()
		<-s.exited
	}
}

// Restart starts a killed server again, without data, at the same address.
func (s *Server) Restart(ctx context.Context) error { return s.run(ctx) }

// Close ends the server.
func (s *Server) Close() {
	_ = s.Client.Close()
	s.Kill()
	_ = os.RemoveAll(s.dir)
}

// Info returns the sum of the numbers in a section of INFO that are the first group of the pattern.
func Info(ctx context.Context, rdb *redis.Client, section, pattern string) (float64, error) {
	info, err := rdb.Info(ctx, section).Result()
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(info, -1)
	if found == nil {
		return 0, fmt.Errorf("no %s in INFO %s", pattern, section)
	}
	var sum float64
	for _, m := range found {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

// Usage is what a server has done since its start.
type Usage struct {
	CPU      float64 // seconds
	Commands float64 // those that scripts call are among them
	Reads    float64 // from a connection: what is sent together is one
}

// Usage reads the server's usage; reading it counts too, as a command and a read for each figure.
func (s *Server) Usage(ctx context.Context) (Usage, error) {
	cpu, err1 := Info(ctx, s.Client, "cpu", `used_cpu_(?:user|sys):([\d.]+)`)
	commands, err2 := Info(ctx, s.Client, "stats", `total_commands_processed:(\d+)`)
	reads, err3 := Info(ctx, s.Client, "stats", `total_reads_processed:(\d+)`)
	return Usage{cpu, commands, reads}, errors.Join(err1, err2, err3)
}
