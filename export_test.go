package ginlimit

// QueueAsks is how many decisions may wait.
const QueueAsks = queueAsks

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
	b, err := newBucket(l)
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
