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
}

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
		left, others := time.Until(of.until), of.first
		if first == nil && others == nil {
			of.first = make(chan struct{})
			first, others = of, nil
		} else if first != nil {
			others = nil
		}
		s.mu.Unlock()
		switch err = s.pause(ctx, left, others); {
		case err != nil:
			s.leave(first)
			return nil, err
		case first != nil && left <= 0:
			return first, nil
		}
	}
	return first, nil
}

// pause waits for the end of a stop, or for the first request after it.
func (s *stops) pause(ctx context.Context, left time.Duration, others chan struct{}) error {
	if deadline, ok := ctx.Deadline(); ok && left > 0 && time.Until(deadline) < left {
		return &TooLateError{left}
	}
	if others == nil && left <= 0 {
		return nil
	}
	var over <-chan time.Time
	if others == nil {
		timer := time.NewTimer(left)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
		return nil
	case <-others:
		return nil
	case <-ctx.Done():
		if ctx.Err() == context.DeadlineExceeded {
			return &TooLateError{max(0, left)}
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
		delete(s.keys, key)
		s.n.Store(int64(len(s.keys)))
	}
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
