package overrides

import (
	"context"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// Local is a [Store] in this process. The zero Local is empty.
type Local struct {
	mu      sync.Mutex // guards the fields below
	texts   map[string]string
	ends    map[string]time.Time
	changes []string // names, in the order of changes
	dropped int      // names from its beginning
}

// stampLocked returns the stamp of the last change.
func (l *Local) stampLocked() string {
	if n := l.dropped + len(l.changes); n > 0 {
		return strconv.Itoa(n)
	}
	return ""
}

// Look implements [Store]: what is published here is not lost.
func (l *Local) Look(context.Context, string) (string, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stampLocked(), true, nil
}

// Overrides implements [Store].
func (l *Local) Overrides(context.Context) (map[string]string, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.texts), l.stampLocked(), nil
}

// Since implements [Store].
func (l *Local) Since(_ context.Context, stamp, _ string) (map[string]string, string, bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from := int(wire.OverrideTurn(stamp)) - l.dropped
	if from < 0 || from > len(l.changes) {
		return nil, "", false, nil
	}
	texts := map[string]string{}
	for _, name := range l.changes[from:] {
		texts[name] = l.texts[name]
	}
	return texts, l.stampLocked(), true, nil
}

// Change implements [Store].
func (l *Local) Change(_ context.Context, c *wire.OverrideChanges) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.texts == nil {
		l.texts, l.ends = map[string]string{}, map[string]time.Time{}
	}
	more := func() (n int) {
		for _, change := range c.Changes {
			_, is := l.texts[change.Name]
			switch {
			case is && change.Text == "":
				n--
			case !is && change.Text != "":
				n++
			}
		}
		return n
	}
	if more() > 0 && len(l.texts)+more() > c.Limit {
		now := time.Now()
		maps.DeleteFunc(l.texts, func(name, _ string) bool { return !now.Before(l.ends[name]) })
		maps.DeleteFunc(l.ends, func(_ string, ends time.Time) bool { return !now.Before(ends) })
	}
	if n := more(); n > 0 && len(l.texts)+n > c.Limit {
		return "", nil
	}
	for _, change := range c.Changes {
		if l.texts[change.Name], l.ends[change.Name] = change.Text, change.Ends; change.Text == "" {
			delete(l.texts, change.Name)
			delete(l.ends, change.Name)
		}
		l.changes = append(l.changes, change.Name)
	}
	if n := len(l.changes) - c.Kept; n > c.Kept {
		l.changes, l.dropped = append([]string{}, l.changes[n:]...), l.dropped+n
	}
	return l.stampLocked(), nil
}
