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
	mu        sync.Mutex // guards the field below
	published wire.Publication
}

// Publish implements [Store].
func (l *Local) Publish(_ context.Context, p *wire.Publication) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.published.Texts == nil {
		l.published.Texts = map[string]string{}
	}
	l.published.Process = p.Process
	maps.Copy(l.published.Texts, p.Texts)
	return len(p.Texts), nil
}

// Published implements [Store].
func (l *Local) Published(context.Context) (map[string]string, map[string]map[string]time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[string]map[string]time.Time{}
	for name := range l.published.Texts {
		seen[name] = map[string]time.Time{l.published.Process: time.Now()}
	}
	return maps.Clone(l.published.Texts), seen, nil
}
