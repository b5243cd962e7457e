package engine

import (
	"sync"
	"time"
)

// maxBans is how many bans a process counts.
const maxBans = 1 << 16

// bans counts the bans that this process knows of: by the hash of a key, when each ends.
type bans struct {
	mu    sync.Mutex           // guards everything below
	ends  map[uint64]time.Time // at most maxBans
	swept time.Time            // when those that are over were forgotten last
}

// note keeps for how long a client is banned, as was just found.
func (b *bans) note(hash uint64, d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d <= 0 {
		delete(b.ends, hash)
		return
	}
	now := time.Now()
	if _, known := b.ends[hash]; !known && len(b.ends) >= maxBans {
		if now.Sub(b.swept) < time.Second {
			return
		}
		if b.sweepLocked(now); len(b.ends) >= maxBans {
			return
		}
	}
	if b.ends == nil {
		b.ends = map[uint64]time.Time{}
	}
	b.ends[hash] = now.Add(d)
}

// len returns how many bans last.
func (b *bans) len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sweepLocked(time.Now())
	return len(b.ends)
}

// sweepLocked forgets the bans that are over.
func (b *bans) sweepLocked(now time.Time) {
	b.swept = now
	for hash, end := range b.ends {
		if !end.After(now) {
			delete(b.ends, hash)
		}
	}
}
