package memory

import (
	"cmp"
	"slices"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// maxTenants limits how many tenants of all buckets hold something or are blocked; each takes some 110
// bytes. Beyond that, the bucket with the most tenants of a few forgets them. One bucket has at most
// those of a shard, 8,192.
const maxTenants = 1 << 18

// tenants is what the tenants of a bucket hold. See bucket.Shares.
type tenants struct {
	sum, weights int64
	byFinish     []*holder          // in the order of their finishes, then of their names
	byName       map[string]*holder // the same
	blocks       map[string]int64   // the millisecond at which the block of a tenant ends
	blocked      int64              // until which a tenant is blocked
	counted      int                // how many of them the shard counts
}

// known returns how many tenants the shard counts.
func (t *tenants) known() int {
	if t == nil {
		return 0
	}
	return t.counted
}

// holder is a tenant that holds something. One without a name holds what no tenant has charged.
type holder struct {
	name           string
	finish, weight int64
}

func (h *holder) compare(other *holder) int {
	return cmp.Or(cmp.Compare(h.finish, other.finish), cmp.Compare(h.name, other.name))
}

// limitOf returns the index of the limit that tenants share.
func (r *request) limitOf(i int) int { return i - bucket.Counted(r.buckets) }

// tenantsLocked returns what tenants hold of a bucket, or nil if nothing is known.
func (s *shard) tenantsLocked(r *request, i int) *tenants {
	if e := s.buckets[r.id(i)]; e != nil && e.ends() > r.now {
		return e.tenants
	}
	return nil
}

// keepTenantsLocked keeps what tenants hold of a bucket for as long as it has a level or a tenant is
// blocked.
func (s *shard) keepTenantsLocked(r *request, i int, t *tenants) {
	limit, e := s.buckets[r.id(r.limitOf(i))], s.entryLocked(r, i)
	s.tenants -= e.tenants.known()
	e.tenants, e.full, e.block = t, 0, 0
	if limit != nil {
		e.full = limit.full
	}
	if t.blocked <= r.now {
		clear(t.blocks)
	}
	e.block = t.blocked
	t.counted = len(t.byFinish) + len(t.blocks)
	if s.tenants += t.counted; e.ends() <= r.now {
		s.forgetLocked(r.id(i))
	}
	for s.tenants > maxTenants/shards {
		most := s.largestLocked(func(e *entry) int { return e.tenants.known() }).tenants
		s.tenants -= most.counted
		*most = tenants{} // now no tenant has charged what is missing from the bucket
	}
}

// findTenantsLocked sets the state of the request's tenant. The state of the limit is set.
func (s *shard) findTenantsLocked(r *request, i int) {
	level, b := r.states[r.limitOf(i)].Level, &r.buckets[i]
	of := bucket.Shares{Finish: bucket.NoFinish, Weight: r.Tenant.Weight}
	if t := s.tenantsLocked(r, i); t != nil {
		t.advance(b, level)
		of.Sum, of.Weights = t.sum, t.weights
		if h := t.byName[r.Tenant.Name]; h != nil {
			of.Finish, of.Held = h.finish, h.weight
		}
		if ends, ok := t.blocks[r.Tenant.Name]; ok && ends > r.now {
			of.Block = ends - r.now
		} else if ok {
			delete(t.blocks, r.Tenant.Name)
		}
	}
	if unnamed := b.Unnamed(level); of.Weights == 0 && unnamed > 0 {
		of.Sum, of.Weights = unnamed, 1
	}
	r.states[i] = bucket.State{Level: level, Shares: &of}
}

// changeTenantsLocked changes what the request's tenant holds, after the limit was changed.
func (s *shard) changeTenantsLocked(r *request, i int, charges int64) {
	limit := r.limitOf(i)
	b, before, after := &r.buckets[i], r.states[limit].Level, s.buckets[r.id(limit)].level(&r.buckets[limit], r.now)
	found := r.states[i]
	t := s.tenantsLocked(r, i)
	switch {
	case r.Verb == bucket.Block:
		if t == nil {
			t = new(tenants)
		}
		if t.blocks == nil || len(t.blocks) >= maxTenants/shards {
			t.blocks = map[string]int64{}
		}
		ends := max(t.blocks[r.Tenant.Name], r.now+r.N)
		t.blocks[r.Tenant.Name], t.blocked = ends, max(t.blocked, ends)
		s.keepTenantsLocked(r, i, t)
		return
	case r.Verb == bucket.Take && charges == 0:
	case after != before || r.Verb == bucket.Reset:
		if t == nil {
			t = new(tenants)
		}
		t.set(r.Tenant.Name, found.Shares, b, before, after)
		if r.Verb == bucket.Reset {
			delete(t.blocks, r.Tenant.Name)
		}
		s.keepTenantsLocked(r, i, t)
	}
	if r.Verb != bucket.Take || charges == r.Charges && charges > 0 {
		return
	}
	if charges > 0 {
		found = b.Charged(found, charges, r.N)
	}
	at := -1
	r.states[i].Wait = b.TenantWait(found, r.N, func() (h bucket.Holder, own, ok bool) {
		if at++; t == nil || at >= len(t.byFinish) {
			return h, false, false
		}
		one := t.byFinish[at]
		return bucket.Holder{Finish: one.finish, Weight: one.weight}, one.name == r.Tenant.Name, true
	})
}

// resetTenantLocked gives back what a tenant holds, and ends its block and its ban.
func (s *shard) resetTenantLocked(r *request) {
	s.resets++
	for i := range r.buckets {
		switch b := &r.buckets[i]; b.Kind {
		case bucket.Tenants:
			limit := r.limitOf(i)
			level := r.states[limit].Level
			units := min(level, b.Holds(r.states[i].Shares, level))
			if e := s.buckets[r.id(limit)]; e != nil && e.block > r.now { // it is not of the tenant
				units = min(units, level-min(level, b.BlockLevel(e.block-r.now)))
			}
			s.recordLocked(r, limit, units, s.drainTimeLocked(r, limit))
			if units > 0 {
				s.setLevelLocked(r, limit, level-units, s.buckets[r.id(limit)].block)
			}
			s.changeTenantsLocked(r, i, 0)
			s.noteResetLocked(r, limit)
			r.states[limit].Level = units
		case bucket.Ban:
			s.forgetLocked(r.id(i))
		}
	}
}

// resetID names the entry that notes when the tenant was reset.
func (r *request) resetID(i int) id {
	return id{string(r.key), r.buckets[i].ID + ":reset" + r.Tenant.Name}
}

// noteResetLocked notes that the tenant is reset, for as long as something may be left of what it took.
func (s *shard) noteResetLocked(r *request, i int) {
	e, b := s.buckets[r.resetID(i)], &r.buckets[i]
	if e == nil {
		e = s.newEntryLocked(r, r.resetID(i))
	}
	e.full, e.value = r.now+2*bucket.CeilDiv(b.Capacity+b.Floor, b.Drain), s.resets
}

// resetSinceLocked reports whether the tenant was reset since it took what it gives back.
func (s *shard) resetSinceLocked(r *request, i int) bool {
	if r.Tenant.Name == "" {
		return false
	}
	e := s.buckets[r.resetID(i)]
	return e != nil && e.full > r.now && e.value > r.Claims[i].Era
}

// advance forgets the tenants of which nothing is left at a level.
func (t *tenants) advance(b *bucket.Bucket, level int64) {
	if t.weights > 0 {
		t.sum = b.SumAt(t.sum, level)
	}
	gone := 0
	for _, h := range t.byFinish {
		if float64(h.finish) > b.Virtual(t.sum, t.weights, level) {
			break
		}
		t.drop(h)
		gone++
	}
	t.byFinish = slices.Delete(t.byFinish, 0, gone)
	if t.weights == 0 {
		t.sum = 0 // what no tenant has charged has no other sum
	}
}

// remove forgets a tenant.
func (t *tenants) remove(name string) {
	if h := t.byName[name]; h != nil {
		at, _ := slices.BinarySearchFunc(t.byFinish, h, (*holder).compare)
		t.byFinish = slices.Delete(t.byFinish, at, at+1)
		t.drop(h)
	}
}

// drop forgets a tenant that is not in the order of finishes, or will not be.
func (t *tenants) drop(h *holder) {
	delete(t.byName, h.name)
	t.sum -= h.weight * h.finish
	t.weights -= h.weight
}

// add adds a tenant, which is not known.
func (t *tenants) add(h *holder) {
	if t.byName == nil {
		t.byName = map[string]*holder{}
	}
	at, _ := slices.BinarySearchFunc(t.byFinish, h, (*holder).compare)
	t.byFinish, t.byName[h.name] = slices.Insert(t.byFinish, at, h), h
	t.sum += h.weight * h.finish
	t.weights += h.weight
}

// set changes what a tenant holds, as it was found, by a change of the bucket's level.
func (t *tenants) set(name string, found *bucket.Shares, b *bucket.Bucket, before, after int64) {
	if len(t.byFinish) == 0 && found.Weights > 0 {
		t.add(&holder{"", found.Sum, 1})
	}
	of := *found
	forgotten := b.Add(&of, before, after)
	t.remove(name)
	if of.Finish != bucket.NoFinish {
		t.add(&holder{name, of.Finish, of.Held})
	}
	t.sum = of.Sum
	if forgotten || len(t.byFinish) > maxTenants/shards {
		*t = tenants{blocks: t.blocks, blocked: t.blocked, counted: t.counted}
		t.add(&holder{"", b.Unnamed(after), 1})
	}
}
