package published

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// Local is a [Store] in this process. The zero Local is empty.
type Local struct {
	mu    sync.Mutex // guards the fields below
	texts map[string]string
	seen  map[string]map[string]time.Time // by the name of a text and of a process
}

// Publish implements [Store].
func (l *Local) Publish(_ context.Context, p *wire.Publication) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.texts == nil {
		l.texts, l.seen = map[string]string{}, map[string]map[string]time.Time{}
	}
	maps.Copy(l.texts, p.Texts)
	now := time.Now()
	for name := range p.Texts {
		l.seen[name] = map[string]time.Time{p.Process: now}
	}
	for name := range l.texts {
		if now.Sub(l.seen[name][p.Process]) >= p.Life {
			delete(l.texts, name)
			delete(l.seen, name)
		}
	}
	return len(p.Texts), nil
}

// Published implements [Store].
func (l *Local) Published(context.Context) (map[string]string, map[string]map[string]time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.texts), maps.Clone(l.seen), nil
}
