package ginlimit

import (
	"slices"
	"sync"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/httpfields"
)

const (
	// maxClientLimits is how many sets of limits from its function a policy keeps checked. A further set
	// replaces any of them: a set that is used often is soon there again.
	maxClientLimits = 2048
	// maxCachedLimits is the most limits of a set that is kept.
	maxCachedLimits = 16
)

// policyLimits are limits with what a policy adds to them: its floor, ban, slots, shares and leases. They do
// not change.
type policyLimits struct {
	*limitSet
	fields []httpfields.Limit // of the limits that are counted, then of the one that prohibits or the slots
}

// newLimits returns limits as a policy counts them, and every error in them. A client's own limits have the
// policy's slots unless they name others. In this process alone nothing is leased.
func (c *countConfig) newLimits(name string, limits []Limit, slots int, local bool) (*policyLimits, error) {
	s, err := newLimitSet(limits)
	s.name = name
	s.leave(c.floor)
	if s.slots == 0 {
		s.slots = slots
	}
	if c.shares != nil {
		s.rules.Divide()
	}
	var inFlight *bucket.Bucket
	if s.slots > 0 {
		b := bucket.NewSlots(int64(s.slots))
		inFlight = &b
	}
	s.rules.Guard(c.ban, inFlight)
	if !local {
		if i := s.rules.AllowLeases(c.lease); i >= 0 {
			s.prohibit(i)
		}
	}
	s.rules.KeepShare()
	return &policyLimits{s, fieldsOf(s)}, err
}

// fieldsOf returns limits as header fields name them: by the policy's name, followed by their period if there
// are several.
func fieldsOf(s *limitSet) []httpfields.Limit {
	var fields []httpfields.Limit
	for _, l := range s.limits {
		fields = append(fields, httpfields.Limit{Name: l.per(), Quota: int64(l.burst())})
	}
	switch {
	case s.rules.Prohibits():
		fields = append(fields, httpfields.Limit{Name: s.prohibited.per(), Detail: httpfields.ProhibitedDetail})
	case s.slots > 0:
		fields = append(fields, httpfields.Limit{
			Name: slotsName, Quota: int64(s.slots), Unit: httpfields.ConcurrentRequests,
		})
	}
	inFlight := slices.ContainsFunc(s.given, func(l Limit) bool { return l.InFlight > 0 })
	several := len(s.given) > 2 || len(s.given) == 2 && !inFlight
	httpfields.NameLimits(s.name, several, fields)
	return fields
}

// fieldOf returns the index in the header fields of a resource.
func (l *policyLimits) fieldOf(resource int) int {
	if resource >= 0 && resource < len(l.limits) {
		return resource
	}
	return len(l.limits) // it prohibits, or is the slots
}

// clientLimits are the limits of a client, as a key of a map.
type clientLimits struct {
	n      int // of limits
	limits [4]Limit
	more   any // clientLimits of those that follow; nil if there are none
}

func newClientLimits(limits []Limit) (c clientLimits) {
	c.n = copy(c.limits[:], limits)
	if c.n < len(limits) {
		c.more = newClientLimits(limits[c.n:])
	}
	return c
}

// limitCache keeps limits of clients that were checked. The zero limitCache is empty.
type limitCache struct {
	mu   sync.RWMutex // guards sets
	sets map[clientLimits]*policyLimits
}

// get returns the set of a client's limits, or nil.
func (c *limitCache) get(limits []Limit) *policyLimits {
	if len(limits) > maxCachedLimits {
		return nil
	}
	key := newClientLimits(limits)
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.sets[key]
}

// keep keeps the set of a client's limits.
func (c *limitCache) keep(limits []Limit, s *policyLimits) {
	if len(limits) > maxCachedLimits {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sets) >= maxClientLimits {
		for some := range c.sets { // a map begins with any of its keys
			delete(c.sets, some)
			break
		}
	}
	if c.sets == nil {
		c.sets = map[clientLimits]*policyLimits{}
	}
	c.sets[newClientLimits(limits)] = s
}
