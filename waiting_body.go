package ginlimit

import (
	"io"
	"net/http"
	"reflect"
	"sync"
)

const (
	// maxReadAhead is the longest body that is read ahead. Of one as long net/http's server reads the rest itself
	// before it answers, so that a read that is not over delays no response.
	maxReadAhead = 256<<10 - 1
	// maxAllReadAhead is how much memory the bodies of all waiting requests of a limiter take.
	maxAllReadAhead = 32 << 20
)

// waitingBody is the body of a request that may wait in a queue. A goroutine reads it while the request waits,
// because net/http's server notices that a client of HTTP/1.1 has left only if it has read the body, or is
// reading it (golang/go#23262). Else the place in the queue, and then a token, would be a client's that has left.
type waitingBody struct {
	io.ReadCloser // the server's
	request       *http.Request
	limiter       *Limiter

	done chan struct{} // is closed when the goroutine has ended; nil if there is none

	mu      sync.Mutex // guards the following
	stopped bool       // no read begins any more
	closed  bool
	read    []byte // that nobody has wanted yet
	err     error  // of the last read, that nobody has seen yet
}

// takeFor is take for a request in a handler. With a queue the body is read ahead while the request waits.
func (s *requestState) takeFor(r *http.Request) (failed *part, why failure) {
	if !s.queues() || !readsAhead(r) {
		return s.take(r.Context(), nil)
	}
	b := &waitingBody{ReadCloser: r.Body, request: r, limiter: s.parts[0].policy.limiter}
	defer b.stop()
	return s.take(r.Context(), b.begin)
}

// readsAhead reports whether a body can be read ahead: one that HTTP/1.1's server reads from the connection, and
// nobody else. A body that asks the client to send it (Expect), one of HTTP/2, and one that other middleware has
// wrapped, are of other types. The connection of an Upgrade is not only the body's.
func readsAhead(r *http.Request) bool {
	if r.ContentLength < 1 || r.ContentLength > maxReadAhead || r.Header["Upgrade"] != nil {
		return false
	}
	body := reflect.TypeOf(r.Body)
	return body != nil && body.Kind() == reflect.Pointer && body.Elem().Name() == "body" && body.Elem().PkgPath() == "net/http"
}

// begin begins to read ahead, once, if all that is read ahead does not take too much memory.
func (b *waitingBody) begin() {
	if b.done != nil {
		return
	}
	n := b.request.ContentLength
	if b.limiter.readAhead.Add(n) > maxAllReadAhead {
		b.limiter.readAhead.Add(-n)
		return
	}
	b.done, b.request.Body = make(chan struct{}), b
	go b.fill(make([]byte, n))
}

// fill reads into memory to its end, until it is stopped.
func (b *waitingBody) fill(memory []byte) {
	defer close(b.done)
	for n := 0; b.goesOn(); {
		more, err := b.ReadCloser.Read(memory[n:])
		b.mu.Lock()
		n += more
		b.read, b.err = memory[n-more-len(b.read):n], err
		b.stopped = b.stopped || err != nil || n == len(memory)
		b.mu.Unlock()
	}
}

func (b *waitingBody) goesOn() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.stopped
}

// stop ends the reading ahead, as the request waits no longer. A read that has begun goes on.
func (b *waitingBody) stop() {
	if b.done == nil {
		return
	}
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
	b.limiter.readAhead.Add(-b.request.ContentLength)
}

// Read implements [io.Reader]: first what was read ahead, then what a read that has begun reads.
func (b *waitingBody) Read(p []byte) (int, error) {
	n, more, err := b.take(p)
	if more {
		<-b.done
		n, more, err = b.take(p)
	}
	if more {
		return b.ReadCloser.Read(p)
	}
	return n, err
}

// take returns what was read ahead, or the error after that. It is more if there is neither.
func (b *waitingBody) take(p []byte) (n int, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, false, http.ErrBodyReadAfterClose
	case len(b.read) > 0:
		if n = copy(p, b.read); n == len(b.read) {
			b.read = nil
		} else {
			b.read = b.read[n:]
		}
		return n, false, nil
	}
	err, b.err = b.err, nil
	return 0, err == nil, err
}

// Close implements [io.Closer].
func (b *waitingBody) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	return b.ReadCloser.Close()
}
