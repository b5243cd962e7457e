package ginlimit

import "strconv"

// The bounds of a dispatcher.
const (
	QueueAsks    = queueAsks
	MostInFlight = mostInFlight
	FarBatches   = farBatches
)

// SlotText is how a key stands in a slot tag.
func SlotText(key string) string { return string(appendSlotText(nil, "", key, nil)) }

// Waiting is how many decisions of a limiter wait for a place.
func Waiting(l *Limiter) int {
	d := l.store.(*redisStore).nodes.unknown
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting)
}

// ShareOf is the share of one of so many processes in a limit that can be counted: tokens per period, and at once.
func ShareOf(l Limit, replicas int) (rate float64, burst int, ok bool) {
	b, err := newBucket(TokenBucket, l)
	if err != nil {
		return 0, 0, false
	}
	share := b.shareOf(replicas)
	return float64(share.drain) * float64(l.Period.Milliseconds()) / float64(share.cost), int(share.burst), true
}

// PlansKept is how many plans a process keeps.
func PlansKept(p *Plans) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.fresh) + len(p.old)
}

// ForgetGlance has a second pass for what a process knows of plans.
func ForgetGlance(p *Plans) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, plans := range []map[string]*plan{p.fresh, p.old} {
		for key, known := range plans {
			older := *known
			older.until = older.until.Add(-planGlance)
			plans[key] = &older
		}
	}
}

// FieldName is how a name stands in the fields of the draft.
func FieldName(name string) string { return fieldName(name) }

// LocalShards is over how many locks the buckets of this process are spread.
const LocalShards = localShards

// KeysOfAShard returns keys that share a lock, by their number.
func KeysOfAShard(l *Limiter) func(i int) string {
	s := l.store.(*localStore)
	var keys []string
	next := 0
	return func(i int) string {
		for ; len(keys) <= i; next++ {
			key := strconv.Itoa(next)
			shard, _ := s.lock(key)
			shard.mu.Unlock()
			if shard == &s.shards[0] {
				keys = append(keys, key)
			}
		}
		return keys[i]
	}
}

// LocalWindows is how many windows a limiter of this process keeps, and how many entries in their logs, as it
// counts them itself. It panics if it has miscounted.
func LocalWindows(l *Limiter) (windows, entries int) {
	s := l.store.(*localStore)
	for i := range s.shards {
		shard, logged := &s.shards[i], 0
		for _, all := range shard.windows {
			for _, w := range all {
				logged += len(w.log)
			}
			windows += len(all)
		}
		if logged != shard.logged {
			panic("entries are miscounted")
		}
		entries += logged
	}
	return windows, entries
}
