// Package readahead reads the body of a request while the request waits, because net/http's server notices that a
// client of HTTP/1.1 has left only if it has read the body, or is reading it (golang/go#23262).
//
// It owns what was read, and hands it over in order. It never knows what a request waits for, nor how much memory all
// bodies may take.
package readahead

import (
	"io"
	"sync"
)

// Body is a body that is read ahead.
type Body struct {
	io.ReadCloser       // the server's
	closedErr     error // of a read after Close

	done chan struct{} // is closed when the goroutine has ended

	mu      sync.Mutex // guards the following
	stopped bool       // no read begins any more
	closed  bool
	read    []byte // that nobody has wanted yet
	err     error  // of the last read, that nobody has seen yet
}

// Begin begins to read ahead a body of n bytes. closedErr is the error of a read after Close.
func Begin(body io.ReadCloser, n int64, closedErr error) *Body {
	b := &Body{ReadCloser: body, closedErr: closedErr, done: make(chan struct{})}
	go b.fill(make([]byte, n))
	return b
}

// fill reads into memory to its end, until it is stopped.
func (b *Body) fill(memory []byte) {
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

func (b *Body) goesOn() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.stopped
}

// Stop ends the reading ahead. A read that has begun goes on.
func (b *Body) Stop() {
	b.mu.Lock()
	b.stopped = true
	b.mu.Unlock()
}

// Wait returns when no read that Begin began goes on.
func (b *Body) Wait() { <-b.done }

// Read implements [io.Reader]: first what was read ahead, then what a read that has begun reads.
func (b *Body) Read(p []byte) (int, error) {
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
func (b *Body) take(p []byte) (n int, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return 0, false, b.closedErr
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
func (b *Body) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	return b.ReadCloser.Close()
}
