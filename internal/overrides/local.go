package overrides

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
	ends  map[string]time.Time
	stamp string
}

// Stamp implements [Store].
func (l *Local) Stamp(context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stamp, nil
}

// Overrides implements [Store].
func (l *Local) Overrides(context.Context) (map[string]string, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.texts), l.stamp, nil
}

// Change implements [Store].
func (l *Local) Change(_ context.Context, stamp string, limit int, changes []wire.OverrideChange) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	texts, ends, now := map[string]string{}, map[string]time.Time{}, time.Now()
	for name, text := range l.texts {
		if now.Before(l.ends[name]) {
			texts[name], ends[name] = text, l.ends[name]
		}
	}
	before := len(texts)
	for _, c := range changes {
		if delete(texts, c.Name); c.Text != "" {
			texts[c.Name], ends[c.Name] = c.Text, c.Ends
		}
	}
	if len(texts) > max(before, limit) {
		return false, nil
	}
	l.texts, l.ends, l.stamp = texts, ends, stamp
	return true, nil
}
