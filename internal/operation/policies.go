package operation

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"time"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// Policy is a policy as a process serves it. It is JSON in a store.
type Policy struct {
	Version int      `json:"v"`
	Name    string   `json:"name"`
	Limits  string   `json:"limits,omitempty"`
	Key     string   `json:"key"` // the kind of its key function
	Headers int      `json:"headers"`
	Options []string `json:"options,omitempty"` // names of the others
	Build   string   `json:"build,omitempty"`   // of the application
}

// Serve notes that this process serves a policy, to be published within a second.
func (o *Operation[L]) Serve(p Policy) {
	p.Version = version
	text := marshal(p)
	sum := sha256.Sum256([]byte(text))
	name := base64.RawURLEncoding.EncodeToString(sum[:12])
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.policies[name]; known || len(o.policies) == maxPublished {
		return
	}
	o.policies[name], o.isNew = text, true
	if o.timer != nil && !o.busy {
		o.timer.Reset(interval)
	}
	o.used.Store(false) // the next decision begins to publish
}

// publish publishes the policies that this process serves.
func (o *Operation[L]) publish(ctx context.Context) error {
	o.mu.Lock()
	var calls []map[string]string
	for name, text := range o.policies {
		if last := len(calls) - 1; last < 0 || len(calls[last]) == maxTogether {
			calls = append(calls, map[string]string{})
		}
		calls[len(calls)-1][name] = text
	}
	o.isNew = false
	o.mu.Unlock()
	for _, texts := range calls {
		_, err := o.Store.Publish(ctx, &wire.Publication{
			Process: o.Process, Now: time.Now(), Life: publicationLife, MostTexts: maxTexts, MostMembers: maxMembers,
			Texts: texts,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Published is a policy as some processes have published it.
type Published struct {
	Policy
	Processes int
	Seen      time.Time // last
}

// Policies returns what processes have published not long ago.
func (o *Operation[L]) Policies(ctx context.Context) (all []Published, err error) {
	if err := o.publish(ctx); err != nil { // what this process has not published yet
		return nil, err
	}
	texts, seen, err := o.Store.Published(ctx)
	if err != nil {
		return nil, err
	}
	oldest := time.Now().Add(-publicationLife)
	for name, text := range texts {
		var p Published
		for _, at := range seen[name] {
			if at.After(oldest) {
				p.Processes++
			}
			if at.After(p.Seen) {
				p.Seen = at
			}
		}
		if p.Processes == 0 {
			continue
		}
		if err := unmarshal(text, &p.Version, &p.Policy); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}
