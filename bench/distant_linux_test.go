package bench

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// BenchmarkDistantRedis is BenchmarkDecisions with a millisecond of way to Redis.
func BenchmarkDistantRedis(b *testing.B) {
	for _, callers := range []int{16, 64, 512} {
		for _, l := range libraries {
			b.Run(fmt.Sprintf("callers=%d/%s", callers, l.name), func(b *testing.B) {
				decisions(b, scenes[0], callers, l, connect(b, startProxy(b, startRedis(b), time.Millisecond)))
			})
		}
	}
}

// The proxy's settings, in its environment.
const proxyServer, proxyRoundTrip = "BENCH_PROXY_SERVER", "BENCH_PROXY_ROUND_TRIP"

// TestMain is the proxy, if the environment says so: a process of its own, of one thread, so that it costs little and is
// late by the same time however much goes on. Go's timers are up to a millisecond later while little does.
func TestMain(m *testing.M) {
	server := os.Getenv(proxyServer)
	if server == "" {
		os.Exit(m.Run())
	}
	roundTrip, err := time.ParseDuration(os.Getenv(proxyRoundTrip))
	if err == nil {
		err = proxy(server, roundTrip)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// startProxy starts a process that passes connections on to a server, each way in half of the added round trip.
func startProxy(tb testing.TB, server string, roundTrip time.Duration) string {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), proxyServer+"="+server, proxyRoundTrip+"="+roundTrip.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	return address[:len(address)-1]
}

// piece is what is on its way to a connection.
type piece struct {
	to   int
	data []byte // none if this was the end
	due  time.Time
}

// proxy says where it listens, and passes everything on, late by half of the round trip.
func proxy(server string, roundTrip time.Duration) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	pairs := make(chan [2]int)
	go func() {
		for {
			if err := accept(listener, server, pairs); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}()
	runtime.LockOSThread()
	other := map[int]int{} // of each connection that has not ended
	var way []piece
	for {
		var ready syscall.FdSet
		last := 0
		for fd := range other {
			ready.Bits[fd/64] |= 1 << (fd % 64)
			last = max(last, fd)
		}
		wait := time.Millisecond // or there is a new connection
		if len(way) > 0 {
			wait = min(wait, max(0, time.Until(way[0].due)))
		}
		timeout := syscall.NsecToTimeval(int64(wait))
		if _, err := syscall.Select(last+1, &ready, nil, nil, &timeout); err == syscall.EINTR {
			continue
		} else if err != nil {
			return err
		}
		select {
		case pair := <-pairs:
			other[pair[0]], other[pair[1]] = pair[1], pair[0]
			continue
		default:
		}
		for from, to := range other {
			if ready.Bits[from/64]&(1<<(from%64)) == 0 {
				continue
			}
			data := make([]byte, 1<<14)
			n, err := syscall.Read(from, data)
			if n <= 0 || err != nil {
				delete(other, from)
				n = 0
			}
			way = append(way, piece{to, data[:n], time.Now().Add(roundTrip / 2)})
		}
		for len(way) > 0 && time.Until(way[0].due) <= 0 {
			if p := way[0]; len(p.data) == 0 {
				_ = syscall.Shutdown(p.to, syscall.SHUT_WR)
			} else if _, err := syscall.Write(p.to, p.data); err != nil {
				_ = syscall.Shutdown(p.to, syscall.SHUT_RD) // what it would answer is for nobody
			}
			way = way[1:]
		}
	}
}

// accept waits for a connection and makes one to the server.
func accept(listener net.Listener, server string, pairs chan<- [2]int) error {
	client, err := listener.Accept()
	if err != nil {
		return err
	}
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return err
	}
	var pair [2]int
	for i, conn := range []net.Conn{client, upstream} {
		file, err := conn.(*net.TCPConn).File()
		if err != nil {
			return err
		}
		if pair[i], err = syscall.Dup(int(file.Fd())); err != nil {
			return err
		}
		_, _ = file.Close(), conn.Close()
	}
	pairs <- pair
	return nil
}
