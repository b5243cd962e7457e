package ginlimit

// QueueAsks is how many decisions may wait.
const QueueAsks = queueAsks

// SlotText is how a key stands in a slot tag.
func SlotText(key string) string { return string(appendSlotText(nil, "", key)) }

// Waiting is how many decisions of a limiter wait for a place.
func Waiting(l *Limiter) int {
	d := l.store.(*redisStore).nodes.unknown
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting)
}
