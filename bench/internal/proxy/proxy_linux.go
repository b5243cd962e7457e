// Package proxy puts a distance between a client and a server: a proxy in a process of its own.
package proxy

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The proxy's settings, in its environment.
const proxiedServer, addedRoundTrip = "BENCH_PROXY_SERVER", "BENCH_PROXY_ROUND_TRIP"

// RunIfAsked is the proxy, and does not return, if the environment says so. A program that calls
// [Start] must call it first.
//
// The proxy is a process of its own with one thread, so that it costs little and its delay does not depend on what else
// goes on. Go's timers are up to a millisecond late while the process is idle.
func RunIfAsked() {
	server := os.Getenv(proxiedServer)
	if server == "" {
		return
	}
	roundTrip, err := time.ParseDuration(os.Getenv(addedRoundTrip))
	if err == nil {
		err = run(server, roundTrip)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Start starts a process that passes connections on to a server and adds to the round trip, half each way. It
// returns its address and what ends it.
func Start(server string, roundTrip time.Duration) (addr string, end func(), err error) {
	program, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), proxiedServer+"="+server, addedRoundTrip+"="+roundTrip.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	end = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	addr, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		end()
		return "", nil, err
	}
	return strings.TrimSpace(addr), end, nil
}

// segment is data on its way to a connection.
type segment struct {
	to   int
	data []byte // none at the end of the connection
	due  time.Time
}

// run prints where it listens and passes everything on, late by half of the round trip.
func run(server string, roundTrip time.Duration) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	accepting, err := descriptor(listener.(*net.TCPListener))
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	runtime.LockOSThread()
	peer := map[int]int{} // of each open connection
	var inFlight []segment
	var ready []unix.PollFd
	for {
		ready = append(ready[:0], unix.PollFd{Fd: int32(accepting), Events: unix.POLLIN})
		for fd := range peer {
			ready = append(ready, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		var timeout *unix.Timespec // none: wait for data
		if len(inFlight) > 0 {
			t := unix.NsecToTimespec(int64(max(0, time.Until(inFlight[0].due))))
			timeout = &t
		}
		if _, err := unix.Ppoll(ready, timeout, nil); err == unix.EINTR {
			continue
		} else if err != nil {
			return err
		}
		for _, r := range ready[1:] {
			if r.Revents == 0 {
				continue
			}
			from := int(r.Fd)
			data := make([]byte, 1<<14)
			n, err := unix.Read(from, data)
			to := peer[from]
			if n <= 0 || err != nil {
				delete(peer, from)
				n = 0
			}
			inFlight = append(inFlight, segment{to, data[:n], time.Now().Add(roundTrip / 2)})
		}
		if ready[0].Revents != 0 {
			client, upstream, err := accept(listener, server)
			if err != nil {
				return err
			}
			peer[client], peer[upstream] = upstream, client
		}
		for len(inFlight) > 0 && time.Until(inFlight[0].due) <= 0 {
			if s := inFlight[0]; len(s.data) == 0 {
				_ = unix.Shutdown(s.to, unix.SHUT_WR)
			} else if _, err := unix.Write(s.to, s.data); err != nil {
				_ = unix.Shutdown(s.to, unix.SHUT_RD) // nobody would get its reply
			}
			inFlight = inFlight[1:]
		}
	}
}

// accept accepts a connection and makes one to the server.
func accept(listener net.Listener, server string) (client, upstream int, err error) {
	accepted, err := listener.Accept()
	if err != nil {
		return 0, 0, err
	}
	defer accepted.Close()
	dialed, err := net.Dial("tcp", server)
	if err != nil {
		return 0, 0, err
	}
	defer dialed.Close()
	if client, err = blocking(accepted.(*net.TCPConn)); err != nil {
		return 0, 0, err
	}
	upstream, err = blocking(dialed.(*net.TCPConn))
	return client, upstream, err
}

// blocking returns a descriptor of the connection that Go's runtime does not poll.
func blocking(conn *net.TCPConn) (int, error) {
	fd, err := descriptor(conn)
	if err != nil {
		return 0, err
	}
	own, err := unix.Dup(fd)
	if err != nil {
		return 0, err
	}
	return own, unix.SetNonblock(own, false)
}

func descriptor(conn syscall.Conn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var own int
	err = raw.Control(func(fd uintptr) { own = int(fd) })
	return own, err
}
