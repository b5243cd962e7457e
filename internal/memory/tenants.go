package memory

import (
	"cmp"
	"slices"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// maxTenants limits how many tenants of all buckets hold something; each takes some 110 bytes. Beyond that,
// the bucket with the most tenants of a few forgets them. One bucket has at most those of a shard, 8,192.
const maxTenants = 1 << 18

// tenants is what the tenants of a bucket hold. See bucket.Shares.
type tenants struct {
	sum, weights int64
	byFinish     []*holder          // in the order of their finishes, then of their names
	byName       map[string]*holder // the same
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

// tenantsLocked returns what tenants hold of a bucket, or nil if nothing is known.
func (s *shard) tenantsLocked(r *request, i int) *tenants {
	if e := s.buckets[r.id(i)]; e != nil && e.full > r.now {
		return e.tenants
	}
	return nil
}

// keepTenantsLocked keeps what tenants hold of the bucket before them for as long as that has a level.
func (s *shard) keepTenantsLocked(r *request, i int, t *tenants) {
	limit, e := s.buckets[r.id(i-1)], s.entryLocked(r, i)
	s.tenants -= e.tenants.known()
	e.tenants, t.counted = t, len(t.byFinish)
	s.tenants += t.counted
	if limit == nil {
		s.forgetLocked(r.id(i))
	} else {
		e.full = limit.full
	}
	for s.tenants > maxTenants/shards {
		most := s.largestLocked(func(e *entry) int { return e.tenants.known() }).tenants
		s.tenants -= most.counted
		*most = tenants{} // now no tenant has charged what is missing from the bucket
	}
}

// findTenantsLocked sets the state of the request's tenant. The state of the limit before it is set.
func (s *shard) findTenantsLocked(r *request, i int) {
	level, b := r.states[i-1].Level, &r.buckets[i]
	of := bucket.Shares{Finish: bucket.NoFinish, Weight: r.Tenant.Weight}
	if t := s.tenantsLocked(r, i); t != nil {
		t.advance(b, level)
		of.Sum, of.Weights = t.sum, t.weights
		if h := t.byName[r.Tenant.Name]; h != nil {
			of.Finish, of.Held = h.finish, h.weight
		}
	}
	if unnamed := b.Unnamed(level); of.Weights == 0 && unnamed > 0 {
		of.Sum, of.Weights = unnamed, 1
	}
	r.states[i] = bucket.State{Level: level, Shares: &of}
}

// changeTenantsLocked changes what the request's tenant holds, after the limit before it was changed.
func (s *shard) changeTenantsLocked(r *request, i int, charges int64) {
	b, before, after := &r.buckets[i], r.states[i-1].Level, s.buckets[r.id(i-1)].level(&r.buckets[i-1], r.now)
	found, t := r.states[i], s.tenantsLocked(r, i)
	if after != before {
		if t == nil {
			t = new(tenants)
		}
		t.set(r.Tenant.Name, found.Shares, b, before, after)
		s.keepTenantsLocked(r, i, t)
	}
	if r.Verb != bucket.Take || r.fits == r.Charges && r.fits > 0 {
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

// resetTenantLocked gives back what a tenant holds, and voids what was taken before, by any tenant.
func (s *shard) resetTenantLocked(r *request) {
	level := r.states[0].Level
	if units := min(level, r.buckets[1].Holds(r.states[1].Shares, level)); units > 0 {
		s.writeLevelLocked(r, 0, level-units)
		s.changeTenantsLocked(r, 1, 0)
	}
	if e := s.buckets[r.id(0)]; e != nil {
		e.born = s.era
	}
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
		*t = tenants{counted: t.counted}
		t.add(&holder{"", b.Unnamed(after), 1})
	}
}
