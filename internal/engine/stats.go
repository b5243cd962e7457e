package engine

import (
	"errors"

	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// Stats are the figures of an engine.
type Stats struct {
	Redis    redisstore.Stats // zero without Redis
	Replicas int
	Leases   int    // keys that have leased tokens
	Leased   uint64 // decisions by leased tokens
	Slots    int    // held in this process
	Bans     int    // that this process knows of
	Denials  int    // in the deny cache
	Local    int    // buckets in this process
}

// Stats returns the current figures.
func (e *Engine) Stats() Stats {
	e.releaseAbandoned()
	leases := e.leases.Stats()
	s := Stats{
		Denials: e.denied.Len(), Leases: leases.Keys, Leased: leases.Admitted,
		Slots: e.slots.Total(), Bans: e.bans.len(), Replicas: int(e.replicas()), Local: e.local.Len(),
	}
	if e.redis != nil {
		s.Redis = e.redis.Stats()
	}
	return s
}

// Reason returns, as a word for metrics, why the store did not decide, or "" if err is nil.
func Reason(err error) string {
	switch {
	case err == nil: // without Redis
		return ""
	case errors.Is(err, dispatch.ErrClosed):
		return "closed"
	case errors.Is(err, dispatch.ErrOpen):
		return "breaker_open"
	case errors.Is(err, dispatch.ErrQueueFull):
		return "queue_full"
	}
	return redisstore.Word(err)
}
