package memory

import (
	"slices"
	"sort"
)

const (
	// maxLogs limits the memory of all logs of a store, in entries of 16 bytes: 8 MiB. Buckets have
	// memory of their own, so a few clients with long logs evict nobody. When it is used up, the
	// longest of a few logs merges its entries in pairs, so that some tokens count for longer.
	maxLogs = 1 << 19
	// maxLog is how many entries a log holds before it merges them.
	maxLog = 1 << 13
	// logRoom is a log's memory in addition to its entries.
	logRoom = 2
)

// log holds the entries of a sliding window, oldest first.
type log struct {
	entries []logEntry
	expired int  // the first entries, which no longer count
	merged  bool // entries have been merged
}

// logEntry is the tokens taken in a millisecond.
type logEntry struct{ at, tokens int64 }

// room returns a log's part of maxLogs.
func (l *log) room() int {
	if l == nil {
		return 0
	}
	return cap(l.entries) + logRoom
}

// live returns the entries that still count.
func (l *log) live() []logEntry { return l.entries[l.expired:] }

// add appends an entry. The log grows to twice the live entries, and shrinks if they are few.
func (l *log) add(e logEntry) {
	if live, room := l.live(), cap(l.entries); len(l.entries) == room {
		if len(live) == maxLog {
			live = l.merge()
		}
		switch {
		case len(live) > room/2:
			room = min(2*room, maxLog)
		case len(live) < room/8:
			room = 2 * (len(live) + 1)
		}
		if room == cap(l.entries) {
			l.entries = l.entries[:copy(l.entries, live)]
		} else {
			l.entries = append(make([]logEntry, 0, room), live...)
		}
		l.expired = 0
	}
	l.entries = append(l.entries, e)
}

// merge merges each two entries into the later one, and returns the live entries.
func (l *log) merge() []logEntry {
	live := l.live()
	for i := range len(live) / 2 {
		live[i] = logEntry{live[2*i+1].at, live[2*i].tokens + live[2*i+1].tokens}
	}
	if len(live)%2 == 1 {
		live[len(live)/2] = live[len(live)-1]
	}
	l.entries, l.merged = l.entries[:l.expired+(len(live)+1)/2], true
	return l.live()
}

// expireLocked removes the tokens of a window that no longer count.
func (s *shard) expireLocked(w *entry, now int64) {
	if w.full <= now {
		s.emptyLocked(w)
	}
	if w.log == nil {
		return
	}
	period := w.full - w.log.entries[len(w.log.entries)-1].at
	for w.log.live()[0].at+period <= now {
		w.value -= w.log.live()[0].tokens
		w.log.expired++
	}
}

// shrinkLogLocked merges the entries of the longest log in a sample.
func (s *shard) shrinkLogLocked(now int64) {
	longest := s.largestLocked(func(e *entry) int { return e.log.room() })
	if s.expireLocked(longest, now); longest.log == nil {
		return
	}
	l := longest.log
	s.logged -= l.room()
	if live := l.merge(); len(live) > 1 {
		l.entries, l.expired = append(make([]logEntry, 0, len(live)), live...), 0
		s.logged += l.room()
	} else {
		longest.log = nil
	}
}

// removeAt removes tokens that were taken at a time, and returns how many.
func (l *log) removeAt(tokens, at int64) int64 {
	i := l.expired + sort.Search(len(l.live()), func(i int) bool { return l.live()[i].at >= at })
	if i == len(l.entries) || l.entries[i].at > at && !l.merged {
		return 0
	}
	tokens = min(tokens, l.entries[i].tokens)
	if l.entries[i].tokens -= tokens; l.entries[i].tokens == 0 {
		l.entries = slices.Delete(l.entries, i, i+1)
	}
	return tokens
}

// removeLast removes the tokens that were taken last, and returns how many.
func (l *log) removeLast(tokens int64) (given int64) {
	for given < tokens && len(l.entries) > l.expired {
		last := &l.entries[len(l.entries)-1]
		some := min(tokens-given, last.tokens)
		given += some
		if last.tokens -= some; last.tokens == 0 {
			l.entries = l.entries[:len(l.entries)-1]
		}
	}
	return given
}
