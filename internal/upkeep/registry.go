package upkeep

import (
	"reflect"
	"slices"
	"sync"
)

// Registry has what limiters of this process share: a T for each client and prefix.
//
// It keeps the client, and what is shared, until the last limiter has left, by Close or as it was collected. It counts
// limiters: a weak pointer would not do, as tasks in the background hold the client for as long as they run.
type Registry[T any] struct {
	mu  sync.Mutex
	all []*shared[T]
}

type shared[T any] struct {
	client   any
	prefix   string
	value    T
	limiters int
}

// Join returns what the limiters of a client and prefix share, which begin makes for the first. The last one to leave
// ends it. Clients that cannot be compared are different.
func (r *Registry[T]) Join(client any, prefix string, begin func() T, end func(T)) (value T, leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	comparable := reflect.ValueOf(client).Comparable()
	var with *shared[T]
	for _, s := range r.all {
		if comparable && s.prefix == prefix && reflect.ValueOf(s.client).Comparable() && s.client == client {
			with = s
		}
	}
	if with == nil {
		with = &shared[T]{client: client, prefix: prefix, value: begin()}
		r.all = append(r.all, with)
	}
	with.limiters++
	return with.value, sync.OnceFunc(func() { r.leave(with, end) })
}

// leave ends what is shared if no other limiter has it.
func (r *Registry[T]) leave(s *shared[T], end func(T)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.limiters--; s.limiters == 0 {
		r.all = slices.DeleteFunc(r.all, func(other *shared[T]) bool { return other == s })
		end(s.value)
	}
}
