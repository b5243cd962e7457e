package transport

import (
	"context"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit"
)

// lookGap is how often a process compares what a partner and the policy have left of a key.
const lookGap = 100 * time.Millisecond

// looks are when a process has last looked at keys, [maxKeys] at most.
type looks struct {
	mu sync.Mutex // guards at
	at map[string]time.Time
}

// due reports whether it is time to look at a key again, and notes that it is looked at.
func (l *looks) due(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, known := l.at[key]
	if known && now.Sub(last) < lookGap {
		return false
	}
	if l.at == nil {
		l.at = map[string]time.Time{}
	}
	for other := range l.at { // any
		if known || len(l.at) < maxKeys {
			break
		}
		delete(l.at, other)
	}
	l.at[key] = now
	return true
}

// lower takes what the policy has left more than a response says, less what may have flowed back since.
func (a *attempt) lower(ctx context.Context, h http.Header) {
	left, known := remaining(h, a.t.cost != nil)
	now := time.Now()
	if !known || a.reserved != nil && a.reserved.Result().Remaining <= left || !a.t.looks.due(a.key, now) {
		return
	}
	ctx = context.WithoutCancel(ctx)
	rows, _ := a.t.policy.Status(ctx, a.key)
	var rates []ginlimit.Result
	slots := false
	for _, row := range rows {
		if row.Limit.InFlight > 0 {
			slots = true
		} else {
			rates = append(rates, row)
		}
	}
	if len(rates) != 1 || rates[0].Limit.Rate <= 0 { // which of several is meant, nobody knows
		return
	}
	more := rates[0].Remaining - left - int(math.Ceil(flowed(rates[0].Limit, now.Sub(a.took))))
	switch {
	case more <= 0:
	case !slots:
		_, _ = a.t.policy.AllowUpTo(ctx, a.key, more)
	default: // another charge would need another slot
		if a.more = more; a.t.settle == nil {
			_ = a.reserved.Settle(ctx, a.n+more)
		}
	}
}
