package ginlimit

import "time"

const (
	// localLogs is how many entries the logs of sliding windows in this process have at most, together.
	localLogs = 1 << 20
	// localLog is how many one of them has. A longer one merges two entries into the later one, time and again, so
	// that some tokens count for longer.
	localLog = 1 << 13
)

// localWindow is a window in this process: window.lua in Go.
type localWindow struct {
	used  int64 // tokens taken
	end   int64 // the millisecond at which none of them counts any more
	block int64 // the millisecond at which a block ends
	log   []logEntry
}

// logEntry is what was taken in a millisecond, of a sliding window.
type logEntry struct{ at, tokens int64 }

func (w localWindow) ends() int64 { return max(w.end, w.block) }

// windowLocked returns a window without what has left it.
func (s *localShard) windowLocked(key string, b *bucket, now int64) localWindow {
	w := s.windows[b.algorithm][bucketID{key, b.id}]
	if w.end <= now {
		return localWindow{block: w.block}
	}
	for len(w.log) > 0 && w.log[0].at+b.period <= now {
		w.used -= w.log[0].tokens
		w.log = w.log[1:]
	}
	return w
}

func (s *localShard) keepWindowLocked(key string, b *bucket, now int64, w localWindow) {
	id, windows := bucketID{key, b.id}, s.windows[b.algorithm]
	before, ok := windows[id]
	s.logged += len(w.log) - len(before.log)
	if w.ends() <= now {
		delete(windows, id)
		return
	}
	if !ok {
		makeRoom(windows, key, now, s.most, s.dropLog)
	}
	windows[id] = w
	for s.logged > localLogs/localShards && s.forgetLogLocked(key) {
	}
}

// dropLog counts a log that is forgotten.
func (s *localShard) dropLog(w localWindow) { s.logged -= len(w.log) }

// forgetLogLocked forgets, of a few windows with a log, the one that ends soonest, but none of a key. It reports
// whether there was one.
func (s *localShard) forgetLogLocked(key string) bool {
	var soonest bucketID
	windows, looked := s.windows[SlidingWindow], 0
	for id, w := range windows {
		if id.key == key || len(w.log) == 0 {
			continue
		}
		if soonest.key == "" || w.ends() < windows[soonest].ends() {
			soonest = id
		}
		if looked++; looked == localSample {
			break
		}
	}
	s.dropLog(windows[soonest])
	delete(windows, soonest)
	return soonest.key != ""
}

// doWindowsLocked does what is asked of windows.
func (s *localShard) doWindowsLocked(key string, a *ask, now int64) {
	charges := a.charges
	for i := range a.buckets {
		b := &a.buckets[i]
		w := s.windowLocked(key, b, now)
		a.states[i] = state{level: w.used, reset: max(0, w.ends()-now)}
		if w.block > now {
			a.states[i].level = max(w.used, b.capacity)
		}
		if charges > 0 {
			charges = b.fit(a.states[i].level, charges, a.n)
		}
	}
	for i := range a.buckets {
		b := &a.buckets[i]
		w := s.windowLocked(key, b, now)
		switch {
		case a.op == opBlock:
			w.block = max(w.block, now+ceilDiv(int64(a.block), int64(time.Millisecond)))
		case a.op == opReset:
			w = localWindow{}
		case charges > 0:
			w.take(b, now, charges, a.n)
		case charges < 0:
			w.give(b, -charges)
		}
		if a.op != opDecide || charges != 0 {
			s.keepWindowLocked(key, b, now, w)
		}
		w.tell(b, now, a.n, &a.states[i])
	}
}

// take makes charges of n tokens. One of more than there are in the window takes all, of as many periods as it needs.
func (w *localWindow) take(b *bucket, now, charges, n int64) {
	at, tokens := now+b.owed(n), charges*b.room(n)
	w.used += tokens
	if b.algorithm == FixedWindow {
		if w.end == 0 {
			w.end = at + b.period
		}
		return
	}
	last := len(w.log) - 1
	if last >= 0 && w.log[last].at >= at { // in the same millisecond, or what is owed
		w.log[last].tokens += tokens
		return
	}
	w.end = at + b.period
	if w.log = append(w.log, logEntry{at, tokens}); len(w.log) > localLog {
		for i := range len(w.log) / 2 {
			w.log[i] = logEntry{w.log[2*i+1].at, w.log[2*i].tokens + w.log[2*i+1].tokens}
		}
		w.log = append(w.log[:len(w.log)/2], w.log[len(w.log)&^1:]...)
	}
}

// give gives tokens back, those first that were taken last.
func (w *localWindow) give(b *bucket, tokens int64) {
	tokens = min(tokens, w.used)
	w.used -= tokens
	for len(w.log) > 0 && tokens > 0 {
		last := len(w.log) - 1
		some := min(tokens, w.log[last].tokens)
		tokens -= some
		if w.log[last].tokens -= some; w.log[last].tokens == 0 {
			w.log = w.log[:last]
		}
	}
	if w.used == 0 {
		w.end = 0
	} else if last := len(w.log) - 1; last >= 0 {
		w.end = w.log[last].at + b.period
	}
}

// tell completes the state of a window for a wish of n tokens.
func (w *localWindow) tell(b *bucket, now, n int64, s *state) {
	if w.block > now {
		s.soon, s.wait = w.block-now, w.block-now
	}
	if w.used > 0 {
		s.soon = max(s.soon, w.leaves(b, max(1, w.used-b.capacity+1))-now)
	}
	if short := w.used + b.room(n) - b.capacity; short > 0 && b.room(n) <= b.capacity {
		s.wait = max(s.wait, w.leaves(b, short)-now)
	}
}

// leaves returns when so many of the tokens taken count no more.
func (w *localWindow) leaves(b *bucket, tokens int64) int64 {
	for _, entry := range w.log {
		if tokens -= entry.tokens; tokens <= 0 {
			return entry.at + b.period
		}
	}
	return w.end
}
