package ginlimit

import "time"

// Stats are the figures of a limiter. Those that count do so since it was made.
//
// Of a limiter of [NewLocal] only LocalBuckets is not zero, and of a closed one no server is lost.
type Stats struct {
	Servers      int    // of Redis that decisions are sent to; a client whose servers are not known yet has one
	LostServers  int    // of these given up for lost
	Batches      uint64 // sent to Redis
	Decisions    uint64 // in these
	InFlight     int    // batches on their way, those that are late among them
	Queued       int    // decisions that wait for a batch
	Remembered   int    // refusals that may be told without Redis
	LocalBuckets int    // in this process, of all algorithms, full ones that are not forgotten yet among them
}

// Stats returns the figures of now. It is meant for metrics: each call looks through the memory of refusals.
func (l *Limiter) Stats() Stats {
	s := Stats{Remembered: l.denied.size()}
	switch store := l.store.(type) {
	case *redisStore:
		store.nodes.count(&s)
		s.LocalBuckets = l.local.size()
	case *localStore:
		s.LocalBuckets = store.size()
	}
	return s
}

// count adds the figures of all servers.
func (n *nodes) count(s *Stats) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	s.Batches, s.Decisions = n.goneBatches, n.goneDecisions
	n.unknown.count(s)
	if len(n.known) > 0 {
		s.LostServers = 0 // it was for them all
	}
	for _, d := range n.known {
		d.count(s)
	}
	s.Servers = max(1, len(n.known))
}

func (d *dispatcher) count(s *Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Batches += d.batches
	s.Decisions += d.decisions
	if d.closed {
		return
	}
	s.InFlight += len(d.flying) + d.stuck
	s.Queued += len(d.waiting) - d.abandoned
	if d.breaker.lost {
		s.LostServers++
	}
}

func (m *denyMemory) size() int {
	if m == nil {
		return 0
	}
	table := m.table.Load()
	if table == nil {
		return 0
	}
	n, now := 0, time.Now()
	for i := range *table {
		if d := (*table)[i].Load(); d != nil && now.Sub(d.sent) < denialLife {
			n++
		}
	}
	return n
}

func (s *localStore) size() int {
	n := 0
	for i := range s.shards {
		shard := &s.shards[i]
		shard.mu.Lock()
		n += len(shard.buckets)
		for _, windows := range shard.windows {
			n += len(windows)
		}
		shard.mu.Unlock()
	}
	return n
}
