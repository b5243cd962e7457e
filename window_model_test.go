package ginlimit_test

import (
	"math"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
)

// windowModel is both windows as one would define them: the time of every token that was taken.
type windowModel struct {
	algorithm ginlimit.Algorithm
	now       int64 // ms
	windows   map[string]*modelWindow
}

type modelWindow struct {
	taken   []int64 // when each token was, oldest first
	begun   int64   // of a fixed window, if it has tokens
	blocked int64   // until
	at      int64   // how late it is looked at
}

func newWindowModel(a ginlimit.Algorithm) *windowModel {
	return &windowModel{algorithm: a, windows: map[string]*modelWindow{}}
}

func (m *windowModel) advance(d time.Duration) { m.now += d.Milliseconds() }

// window returns a window without the tokens that count no more.
func (m *windowModel) window(key string, l ginlimit.Limit) *modelWindow {
	id := key + " " + l.Period.String()
	w := m.windows[id]
	if w == nil {
		w = &modelWindow{}
		m.windows[id] = w
	}
	for len(w.taken) > 0 && m.leaves(w, 0, l) <= m.clock(w) {
		w.taken = w.taken[1:]
	}
	return w
}

// clock returns the time of a window. The clock of a log is never behind its newest token: if the server's is set back, it
// stands still until that has caught up, or until the log changes.
func (m *windowModel) clock(w *modelWindow) int64 {
	now := m.now + w.at
	if n := len(w.taken); n > 0 && m.algorithm == ginlimit.SlidingWindow {
		now = max(now, w.taken[n-1])
	}
	return now
}

// anchor has the clock of a log be that of the server, as every change of the log does.
func (m *windowModel) anchor(w *modelWindow) { w.shift(m.now + w.at - m.clock(w)) }

// shift moves all of a window's times.
func (w *modelWindow) shift(ms int64) {
	for i := range w.taken {
		w.taken[i] += ms
	}
	w.begun, w.blocked = w.begun+ms, w.blocked+ms
}

// leaves returns when a token counts no more.
func (m *windowModel) leaves(w *modelWindow, i int, l ginlimit.Limit) int64 {
	if m.algorithm == ginlimit.FixedWindow {
		return w.begun + l.Period.Milliseconds()
	}
	return w.taken[i] + l.Period.Milliseconds()
}

// room is how many tokens a window can give.
func (m *windowModel) room(key string, l ginlimit.Limit) int64 {
	w := m.window(key, l)
	if w.blocked > m.clock(w) {
		return 0
	}
	return max(0, int64(l.Rate-len(w.taken)))
}

func (m *windowModel) take(key string, n, least int64, limits []ginlimit.Limit) ginlimit.Result {
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
		w := m.window(key, l)
		if granted > 0 {
			m.anchor(w)
		}
		now := m.clock(w)
		r := ginlimit.Result{Allowed: allowed, Granted: int(granted), Limit: l}
		if !allowed {
			r.RetryAfter = m.wait(w, now, least, l)
		}
		if granted > 0 && len(w.taken) == 0 {
			w.begun = now
		}
		for range granted {
			w.taken = append(w.taken, now)
		}
		end := w.blocked
		if last := len(w.taken) - 1; last >= 0 {
			end = max(end, m.leaves(w, last, l))
		}
		r.Remaining, r.ResetAfter = int(m.room(key, l)), millis(max(0, end-now))
		results = append(results, r)
	}
	return closest(results)
}

// wait returns how long until so many tokens can be taken.
func (m *windowModel) wait(w *modelWindow, now, least int64, l ginlimit.Limit) time.Duration {
	if least > int64(l.Rate) {
		return -1
	}
	wait := max(0, w.blocked-now)
	if short := len(w.taken) + int(least) - l.Rate; short > 0 {
		wait = max(wait, m.leaves(w, short-1, l)-now)
	}
	return millis(wait)
}

func (m *windowModel) refund(key string, n int64, limits []ginlimit.Limit) {
	for _, l := range limits {
		w := m.window(key, l)
		if n > 0 && len(w.taken) > 0 {
			m.anchor(w)
		}
		w.taken = w.taken[:max(0, int64(len(w.taken))-min(n, math.MaxInt32))]
	}
}

// giveBack gives tokens of a sliding window back that were taken at a time.
func (m *windowModel) giveBack(key string, at, n int64, l ginlimit.Limit) {
	w := m.window(key, l)
	if slices.Contains(w.taken, at) {
		late := m.clock(w) - (m.now + w.at)
		m.anchor(w)
		at -= late
	}
	w.taken = slices.DeleteFunc(w.taken, func(taken int64) bool {
		if n == 0 || taken != at {
			return false
		}
		n--
		return true
	})
}

// returns returns how what has just been taken is given back, as far as it still counts.
func (m *windowModel) returns(key string, n int64, limits []ginlimit.Limit) func(*windowModel) {
	at := m.now
	begun := make([]int64, len(limits))
	for i, l := range limits {
		begun[i] = m.window(key, l).begun
	}
	return func(m *windowModel) {
		for i, l := range limits {
			w, left := m.window(key, l), n
			w.taken = slices.DeleteFunc(w.taken, func(taken int64) bool {
				if left == 0 || m.algorithm == ginlimit.SlidingWindow && taken != at || m.algorithm == ginlimit.FixedWindow && w.begun != begun[i] {
					return false
				}
				left--
				return true
			})
		}
	}
}

func (m *windowModel) block(key string, d time.Duration, limits []ginlimit.Limit) {
	for _, l := range limits {
		w, ms := m.window(key, l), int64((d+time.Millisecond-1)/time.Millisecond)
		if m.clock(w)+ms > w.blocked {
			m.anchor(w)
			w.blocked = m.clock(w) + ms
		}
	}
}

func (m *windowModel) reset(key string, limits []ginlimit.Limit) {
	for _, l := range limits {
		*m.window(key, l) = modelWindow{}
	}
}
