package testkit

import (
	"math"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
)

// WindowAlgorithms are the algorithms that count in windows.
var WindowAlgorithms = []ginlimit.Algorithm{ginlimit.FixedWindow, ginlimit.SlidingWindow}

// WindowModel is both windows as one would define them: the time of every token that was taken.
type WindowModel struct {
	Algorithm ginlimit.Algorithm
	Now       int64 // ms
	Windows   map[string]*ModelWindow
}

type ModelWindow struct {
	Taken   []int64 // when each token was, oldest first
	Begun   int64   // of a fixed window, if it has tokens
	Blocked int64   // until
	At      int64   // how late it is looked at
	refunds int     // that have emptied it
}

// NewWindowModel returns a model whose windows are empty.
func NewWindowModel(a ginlimit.Algorithm) *WindowModel {
	return &WindowModel{Algorithm: a, Windows: map[string]*ModelWindow{}}
}

// Advance lets time pass.
func (m *WindowModel) Advance(d time.Duration) { m.Now += d.Milliseconds() }

// Window returns a window without the tokens that count no more.
func (m *WindowModel) Window(key string, l ginlimit.Limit) *ModelWindow {
	id := key + " " + l.Period.String()
	w := m.Windows[id]
	if w == nil {
		w = &ModelWindow{}
		m.Windows[id] = w
	}
	for len(w.Taken) > 0 && m.leaves(w, 0, l) <= m.Clock(w) {
		w.Taken = w.Taken[1:]
	}
	return w
}

// Clock returns the time of a window. The clock of a log is never behind its newest token: if the
// server's is set back, it stands still until that has caught up, or until the log changes.
func (m *WindowModel) Clock(w *ModelWindow) int64 {
	now := m.Now + w.At
	if n := len(w.Taken); n > 0 && m.Algorithm == ginlimit.SlidingWindow {
		now = max(now, w.Taken[n-1])
	}
	return now
}

// anchor has the clock of a log be that of the server, as every change of the log does.
func (m *WindowModel) anchor(w *ModelWindow) { w.Shift(m.Now + w.At - m.Clock(w)) }

// Shift moves all of a window's times.
func (w *ModelWindow) Shift(ms int64) {
	for i := range w.Taken {
		w.Taken[i] += ms
	}
	w.Begun, w.Blocked = w.Begun+ms, w.Blocked+ms
}

// leaves returns when a token counts no more.
func (m *WindowModel) leaves(w *ModelWindow, i int, l ginlimit.Limit) int64 {
	if m.Algorithm == ginlimit.FixedWindow {
		return w.Begun + l.Period.Milliseconds()
	}
	return w.Taken[i] + l.Period.Milliseconds()
}

// room is how many tokens a window can give.
func (m *WindowModel) room(key string, l ginlimit.Limit) int64 {
	w := m.Window(key, l)
	if w.Blocked > m.Clock(w) {
		return 0
	}
	return max(0, int64(l.Rate-len(w.Taken)))
}

// Take is AllowN with least = n, AllowUpTo with least = 1, and Peek with n = 0.
func (m *WindowModel) Take(key string, n, least int64, limits []ginlimit.Limit) ginlimit.Result {
	granted, allowed := n, true
	for _, l := range limits {
		room := m.room(key, l)
		granted = min(granted, room)
		allowed = allowed && room >= least
	}
	if granted < least {
		granted = 0
	}
	var results []ginlimit.Result
	for _, l := range limits {
		w := m.Window(key, l)
		if granted > 0 {
			m.anchor(w)
		}
		now := m.Clock(w)
		r := ginlimit.Result{Allowed: allowed, Granted: int(granted), Limit: l.WithAlgorithm(m.Algorithm)}
		if !allowed {
			r.RetryAfter = m.wait(w, now, least, l)
		}
		if granted > 0 && len(w.Taken) == 0 {
			w.Begun = now
		}
		for range granted {
			w.Taken = append(w.Taken, now)
		}
		end := w.Blocked
		if last := len(w.Taken) - 1; last >= 0 {
			end = max(end, m.leaves(w, last, l))
		}
		r.Remaining, r.ResetAfter = int(m.room(key, l)), Millis(max(0, end-now))
		results = append(results, r)
	}
	return Closest(results)
}

// wait returns how long until so many tokens can be taken.
func (m *WindowModel) wait(w *ModelWindow, now, least int64, l ginlimit.Limit) time.Duration {
	if least > int64(l.Rate) {
		return ginlimit.Never
	}
	wait := max(0, w.Blocked-now)
	if short := len(w.Taken) + int(least) - l.Rate; short > 0 {
		wait = max(wait, m.leaves(w, short-1, l)-now)
	}
	return Millis(wait)
}

// Refund gives back the n tokens that were taken last.
func (m *WindowModel) Refund(key string, n int64, limits []ginlimit.Limit) {
	for _, l := range limits {
		w := m.Window(key, l)
		if n > 0 && len(w.Taken) > 0 {
			m.anchor(w)
		}
		w.Taken = w.Taken[:max(0, int64(len(w.Taken))-min(n, math.MaxInt32))]
		if len(w.Taken) == 0 {
			w.refunds++
		}
	}
}

// GiveBack gives tokens of a sliding window back that were taken at a time.
func (m *WindowModel) GiveBack(key string, at, n int64, l ginlimit.Limit) {
	w := m.Window(key, l)
	if slices.Contains(w.Taken, at) {
		late := m.Clock(w) - (m.Now + w.At)
		m.anchor(w)
		at -= late
	}
	w.Taken = slices.DeleteFunc(w.Taken, func(taken int64) bool {
		if n == 0 || taken != at {
			return false
		}
		n--
		return true
	})
}

// Returns returns how n tokens of what has just been taken are given back, as far as they still count.
func (m *WindowModel) Returns(key string, limits []ginlimit.Limit) func(n int64) {
	at := m.Now
	then := make([]ModelWindow, len(limits))
	for i, l := range limits {
		then[i] = *m.Window(key, l)
	}
	return func(n int64) {
		for i, l := range limits {
			w, left := m.Window(key, l), n
			w.Taken = slices.DeleteFunc(w.Taken, func(taken int64) bool {
				if left == 0 || w.refunds != then[i].refunds ||
					m.Algorithm == ginlimit.SlidingWindow && taken != at ||
					m.Algorithm == ginlimit.FixedWindow && w.Begun != then[i].Begun {
					return false
				}
				left--
				return true
			})
		}
	}
}

// Block denies every token for a time.
func (m *WindowModel) Block(key string, d time.Duration, limits []ginlimit.Limit) {
	for _, l := range limits {
		w, ms := m.Window(key, l), int64((d+time.Millisecond-1)/time.Millisecond)
		if m.Clock(w)+ms > w.Blocked {
			m.anchor(w)
			w.Blocked = m.Clock(w) + ms
		}
	}
}

// Reset empties the windows of a key.
func (m *WindowModel) Reset(key string, limits []ginlimit.Limit) {
	for _, l := range limits {
		*m.Window(key, l) = ModelWindow{}
	}
}
