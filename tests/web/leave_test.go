package web_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// pipes is a listener of connections in memory, which a bubble can wait for.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.ended); return nil }
func (p *pipes) Addr() net.Addr { return &net.IPAddr{} }

// connect returns a client's end of a new connection.
func (p *pipes) connect(t *testing.T) *peer {
	client, server := net.Pipe()
	p.conns <- server
	c := &peer{Conn: client, responses: bufio.NewReader(client), sends: make(chan string, 10)}
	go func() {
		for text := range c.sends {
			_, _ = io.WriteString(client, text)
		}
	}()
	t.Cleanup(func() {
		close(c.sends)
		assert.NoError(t, client.Close())
	})
	return c
}

// peer is a client.
type peer struct {
	net.Conn
	responses *bufio.Reader
	sends     chan string
}

// send sends text in the background, and returns when the server waits.
func (p *peer) send(text string) {
	p.sends <- text
	synctest.Wait()
}

// answer returns the status and the body of the next response.
func (p *peer) answer(t *testing.T) (status int, text string) {
	t.Helper()
	response, err := http.ReadResponse(p.responses, nil)
	require.NoError(t, err)
	return response.StatusCode, string(testkit.Must(io.ReadAll(response.Body)))
}

// queued is a server of net/http, whose only slot is held until release.
type queued struct {
	pipes
	server  *http.Server
	policy  *ginlimit.Policy
	release func()
	runs    atomic.Int64  // of handlers
	begins  chan struct{} // a handler has begun
}

// queue serves requests by a handler, with as many places in the queue and a wait of a minute. Other handlers
// may come before the limiter.
func queue(t *testing.T, places int, handler gin.HandlerFunc, before ...gin.HandlerFunc) *queued {
	t.Helper()
	q := &queued{pipes: pipes{make(chan net.Conn), make(chan struct{})}, begins: make(chan struct{}, 10)}
	limiter := testkit.Must(ginlimit.NewLocal())
	q.policy = testkit.Must(limiter.Policy("chat", ginlimit.PerHour(1000), ginlimit.InFlight(1),
		ginlimit.WithQueue(places, time.Minute), ginlimit.WithKey(testkit.Everybody)))
	router := gin.New()
	router.Use(before...)
	router.Any("/", q.policy.Handler(), func(c *gin.Context) {
		q.runs.Add(1)
		q.begins <- struct{}{}
		assert.NoError(t, c.Request.Context().Err())
		handler(c)
	})
	q.server = &http.Server{Handler: router, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { assert.ErrorIs(t, q.server.Serve(q), http.ErrServerClosed) }()
	t.Cleanup(func() {
		assert.NoError(t, errors.Join(q.server.Close(), limiter.Close()))
		time.Sleep(time.Minute) // until the server has closed connections: it waits for clients to read what it wrote
	})
	q.release = testkit.Must(q.policy.Reserve(t.Context(), "all", 1)).Release
	return q
}

// used requires how many handlers have run, each for a token, beside the one that [queue] took.
func (q *queued) used(t *testing.T, n int) {
	t.Helper()
	require.EqualValues(t, n, q.runs.Load())
	require.Equal(t, 999-n, testkit.Must(q.policy.Status(t.Context(), "all"))[0].Remaining)
}

// echo answers with what it reads.
func echo(c *gin.Context) {
	text, err := io.ReadAll(c.Request.Body)
	if err != nil {
		_ = c.AbortWithError(http.StatusBadRequest, err)
		return
	}
	c.Data(http.StatusOK, "text/plain", text)
}

const get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"

// long is the longest body that is read ahead.
var long = strings.Repeat("0123456789abcde\n", 16<<10)[1:]

// post is a request with a body.
func post(body string, fields ...string) string {
	return fmt.Sprintf("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n%s\r\n%s", len(body),
		strings.Join(append(fields, ""), "\r\n"), body)
}

// TestWhoLeavesGivesItsPlaceBack before a handler has read its body: no handler runs for it, and it takes no token.
func TestWhoLeavesGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"no body": get, "short": post("x"), "long": post(long), "a part of its body": post(long)[:10_000],
		"closes": post("x", "Connection: close"),
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			q := queue(t, 4, echo)
			for range 4 {
				client := q.connect(t)
				client.send(request)
				require.NoError(t, client.Close())
			}
			fifth := q.connect(t)
			fifth.send(post("fifth"))
			q.release()
			status, text := fifth.answer(t)
			require.Equal(t, []any{http.StatusOK, "fifth"}, []any{status, text})
			q.used(t, 1)
		})
	}
}

// TestWhatIsNotReadAhead keeps its place until the handler reads it, as the guide says: it then reads it all.
func TestWhatIsNotReadAhead(t *testing.T) {
	t.Parallel()
	limits := func(c *gin.Context) { c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, 1<<20) }
	nothing := func(*gin.Context) {}
	for name, row := range map[string]struct {
		request, text string
		before        gin.HandlerFunc
	}{
		"longer": {post(long + "x"), long + "x", nothing}, "wrapped": {post("x"), "x", limits},
		"chunked": {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", "x", nothing},
		"upgrade": {post("x", "Connection: upgrade", "Upgrade: tcp"), "x", nothing},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			q := queue(t, 2, echo, row.before)
			stays, leaves, third := q.connect(t), q.connect(t), q.connect(t)
			stays.send(row.request)
			leaves.send(row.request)
			require.NoError(t, leaves.Close())
			synctest.Wait()
			start := time.Now()
			third.send(get)
			status, _ := third.answer(t)
			require.Equal(t, http.StatusTooManyRequests, status)
			require.Zero(t, time.Since(start))
			q.release()
			status, text := stays.answer(t)
			require.Equal(t, http.StatusOK, status)
			require.Equal(t, row.text, text)
		})
	}
}

// TestABodyThatIsReadAheadReachesItsHandler in order, wherever it was when the wait ended. The connection then
// serves another request.
func TestABodyThatIsReadAheadReachesItsHandler(t *testing.T) {
	t.Parallel()
	request := post(long)
	start := len(request) - len(long)
	for _, sent := range []int{start, start + 1, start + 10_000, len(request) - 1, len(request)} {
		testkit.RunSynctest(t, fmt.Sprint(sent), func(t *testing.T) {
			q := queue(t, 1, echo)
			client := q.connect(t)
			client.send(request[:sent])
			q.release()
			<-q.begins // a slow body does not prolong the wait
			client.sends <- request[sent:]
			for _, want := range []string{long, "next"} {
				status, text := client.answer(t)
				require.Equal(t, http.StatusOK, status)
				require.Equal(t, want, text)
				client.send(post("next"))
			}
			client.answer(t)
			q.used(t, 3)
		})
	}
}

// TestHandlersOfABodyThatIsReadAhead meet it as if it was not, although a part of it came before the wait ended.
// After its rest the connection serves another request.
func TestHandlersOfABodyThatIsReadAhead(t *testing.T) {
	t.Parallel()
	const body = "0123456789"
	read := func(c *gin.Context, n int) string {
		text := make([]byte, n)
		n, err := io.ReadFull(c.Request.Body, text)
		return fmt.Sprint(string(text[:n]), err)
	}
	for name, row := range map[string]struct {
		handler gin.HandlerFunc
		fields  []string
		early   bool // the response comes before the rest
		ends    bool // the connection ends with it
		status  int
		text    string
	}{
		"reads nothing": {handler: func(c *gin.Context) { c.String(http.StatusOK, "-") }, text: "-"},
		"streams": {handler: func(c *gin.Context) {
			_, _ = c.Writer.WriteString("-")
			c.Writer.Flush()
		}, text: "-"},
		"reads what came": {handler: func(c *gin.Context) { c.String(http.StatusOK, read(c, 5)) }, text: "01234<nil>"},
		"reads too much": {handler: func(c *gin.Context) { c.String(http.StatusOK, read(c, 11)) },
			text: "0123456789unexpected EOF"},
		"closes": {handler: func(c *gin.Context) {
			assert.NoError(t, c.Request.Body.Close())
			c.String(http.StatusOK, read(c, 1))
		}, text: "http: invalid Read on closed Body"},
		"bounds": {handler: func(c *gin.Context) {
			c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, 7)
			c.String(http.StatusOK, read(c, 10))
		}, ends: true, text: "0123456http: request body too large"},
		"full duplex": {handler: func(c *gin.Context) {
			assert.NoError(t, http.NewResponseController(c.Writer).EnableFullDuplex())
			c.String(http.StatusOK, read(c, 2))
			c.Writer.Flush()
		}, ends: true, text: "01<nil>"}, // net/http ends it for a body that nobody has read
		"last request": {handler: func(c *gin.Context) { c.String(http.StatusOK, read(c, 2)) },
			fields: []string{"Connection: close"}, early: true, ends: true, text: "01<nil>"},
		"panics": {handler: func(*gin.Context) { panic("on purpose") }, status: http.StatusInternalServerError},
	} {
		testkit.RunSynctest(t, name, func(t *testing.T) {
			q := queue(t, 1, row.handler, gin.RecoveryWithWriter(io.Discard))
			client := q.connect(t)
			request := post(body, row.fields...)
			client.send(request[:len(request)-5])
			q.release()
			<-q.begins
			if !row.early {
				client.sends <- request[len(request)-5:]
			}
			status, text := client.answer(t)
			require.Equal(t, max(row.status, http.StatusOK), status)
			require.Equal(t, row.text, text)
			q.used(t, 1)
			if row.ends {
				return
			}
			client.send(get)
			client.answer(t)
			q.used(t, 2)
		})
	}
}

// TestWhatWasReadAheadOutlastsItsDeadline: the server's ReadTimeout ends while the request waits. A client whose body
// has not come by then has left.
func TestWhatWasReadAheadOutlastsItsDeadline(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		q := queue(t, 2, echo, func(c *gin.Context) { // as http.Server.ReadTimeout does
			assert.NoError(t, http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(time.Second)))
		})
		whole, part := q.connect(t), q.connect(t)
		whole.send(post("whole"))
		part.send(post("a part")[:50])
		time.Sleep(2 * time.Second)
		status, _ := part.answer(t)
		require.Equal(t, http.StatusServiceUnavailable, status)
		q.release()
		_, text := whole.answer(t)
		require.Equal(t, "whole", text)
		q.used(t, 1)
	})
}

// TestADeadlineOfTheHandler ends a read that has begun before, and the handler may read on.
func TestADeadlineOfTheHandler(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		reads := make(chan string)
		q := queue(t, 1, func(c *gin.Context) {
			deadline := http.NewResponseController(c.Writer).SetReadDeadline
			for _, at := range []time.Time{time.Now().Add(time.Second), {}} {
				assert.NoError(t, deadline(at))
				text, err := io.ReadAll(c.Request.Body)
				reads <- fmt.Sprint(string(text), errors.Is(err, os.ErrDeadlineExceeded))
			}
		})
		client := q.connect(t)
		request := post("0123456789")
		client.send(request[:len(request)-5])
		q.release()
		require.Equal(t, "01234true", <-reads)
		client.send(request[len(request)-5:])
		require.Equal(t, "56789false", <-reads)
		client.answer(t)
	})
}

// TestNothingIsReadAheadForAHandler: once the wait has ended a handler reads as fast as it can.
func TestNothingIsReadAheadForAHandler(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		goesOn := make(chan bool)
		q := queue(t, 1, func(c *gin.Context) {
			<-goesOn
			echo(c)
		})
		client := q.connect(t)
		client.send(post(long)[:1000])
		q.release()
		<-q.begins
		for range 3 {
			client.send(long[:5000])
		}
		require.NotEmpty(t, client.sends)
		close(goesOn)
		client.sends <- long
		client.answer(t)
	})
}

// TestAWaitThatEndsInADenial answers a client whose body has not come as it does without a wait: after the body, or
// after the server's timeout. The next request of the connection is served.
func TestAWaitThatEndsInADenial(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		denied := make(chan int, 2)
		q := queue(t, 1, echo, func(c *gin.Context) {
			c.Next()
			denied <- c.Writer.Status()
		})
		client := q.connect(t)
		request := post("0123456789")
		client.sends <- request[:len(request)-5]
		require.Equal(t, http.StatusTooManyRequests, <-denied)
		client.sends <- request[len(request)-5:]
		status, _ := client.answer(t)
		require.Equal(t, http.StatusTooManyRequests, status)
		q.release()
		client.send(post("next"))
		_, text := client.answer(t)
		require.Equal(t, "next", text)
	})
}

// TestARequestWithoutAServer has no body, or another one than a server's.
func TestARequestWithoutAServer(t *testing.T) {
	t.Parallel()
	router := testkit.Serve(testkit.NewLocal(t).Handler("queue", ginlimit.PerHour(9), ginlimit.WithQueue(1, time.Minute)))
	for _, body := range []io.ReadCloser{nil, http.NoBody, io.NopCloser(strings.NewReader("x"))} {
		response := testkit.Get(router, "/", func(r *http.Request) { r.Body, r.ContentLength = body, 1 })
		require.Equal(t, http.StatusOK, response.Code)
	}
}

// TestExpect: a client that asks before it sends its body is told to by a handler that reads, not while it waits.
func TestExpect(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		q := queue(t, 2, echo)
		client, denied := q.connect(t), q.connect(t)
		request := post("body", "Expect: 100-continue")
		for _, c := range []*peer{client, denied} {
			c.send(request[:len(request)-4])
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Second)))
			require.ErrorIs(t, testkit.Err(c.responses.ReadByte()), os.ErrDeadlineExceeded)
			require.NoError(t, c.SetReadDeadline(time.Time{}))
		}
		q.release()
		status, _ := client.answer(t)
		require.Equal(t, http.StatusContinue, status)
		client.send("body")
		_, text := client.answer(t)
		require.Equal(t, "body", text)
	})
}
