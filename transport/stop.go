package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// stops are the keys that responses have stopped, and that no request has tried again with success: at most
// [maxKeys], as Redis has the stops of all.
type stops struct {
	n    atomic.Int64 // of keys
	mu   sync.Mutex   // guards keys and what they have
	keys map[string]*stop
}

// stop is a key that was stopped.
type stop struct {
	until time.Time
	first chan struct{} // is closed when the first request after the stop was answered; nil if there is none
	began time.Time     // when the first request began to wait
}

// maxFirst is how long others wait for the first request after a stop, which may be a long poll.
const maxFirst = 10 * time.Second

// wait waits while a key is stopped. It returns the stop if the request is the first one after it: then leave is
// to be called.
func (s *stops) wait(ctx context.Context, key string) (first *stop, err error) {
	for s.n.Load() > 0 {
		s.mu.Lock()
		of := s.keys[key]
		if of == nil {
			s.mu.Unlock()
			break
		}
		if of.first == nil {
			of.first, of.began, first = make(chan struct{}), time.Now(), of
		}
		until, end, others := of.until, of.until, of.first
		if of == first {
			others = nil
		} else if end = of.lasts(); !time.Now().Before(end) { // the first is not waited for
			s.forget(key)
			s.mu.Unlock()
			break
		}
		s.mu.Unlock()
		switch err = pause(ctx, until, end, others); {
		case err != nil:
			s.leave(first)
			return nil, err
		case of == first && !time.Now().Before(until):
			return first, nil
		}
	}
	return first, nil
}

// lasts returns when others go on at the latest.
func (s *stop) lasts() time.Time {
	if s.began.After(s.until) {
		return s.began.Add(maxFirst)
	}
	return s.until.Add(maxFirst)
}

// holds reports whether a key is stopped for a request that is the first one after a stop, or after none.
func (s *stops) holds(key string, first *stop) bool {
	if s.n.Load() == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.keys[key]
	return of != nil && (of != first || time.Now().Before(of.until))
}

// pause waits for the first request after a stop until a time, or for that time alone.
func pause(ctx context.Context, until, end time.Time, first chan struct{}) error {
	left := time.Until(until)
	if deadline, ok := ctx.Deadline(); ok && left > 0 && deadline.Before(until) {
		return &TooLateError{left}
	}
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-first:
		return nil
	case <-ctx.Done():
		if ctx.Err() == context.DeadlineExceeded {
			return &TooLateError{max(0, time.Until(until))}
		}
		return ctx.Err()
	}
}

// add stops a key until a time, or longer if it is stopped for longer.
func (s *stops) add(key string, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.keys[key]
	if of == nil {
		if s.keys == nil {
			s.keys = map[string]*stop{}
		}
		for other, known := range s.keys { // any
			if len(s.keys) < maxKeys {
				break
			}
			if known.first == nil {
				delete(s.keys, other)
			}
		}
		of = &stop{}
		s.keys[key] = of
	}
	if until.After(of.until) {
		of.until = until
	}
	s.n.Store(int64(len(s.keys)))
}

// end ends a stop of which the first request was answered well.
func (s *stops) end(key string, first *stop) {
	if first == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[key] == first && !time.Now().Before(first.until) {
		s.forget(key)
	}
}

// forget forgets a key. s.mu is held.
func (s *stops) forget(key string) {
	delete(s.keys, key)
	s.n.Store(int64(len(s.keys)))
}

// leave lets others go on after the first request, or the next one be the first.
func (s *stops) leave(first *stop) {
	if first == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if first.first != nil {
		close(first.first)
		first.first = nil
	}
}
