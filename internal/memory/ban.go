package memory

import "github.com/ginlimit/ginlimit/internal/bucket"

// findBanLocked sets the state of a ban.
func (s *shard) findBanLocked(r *request, i int) {
	left := int64(0)
	if e := s.buckets[r.id(i)]; e != nil {
		left = max(0, e.block-r.now)
	}
	r.states[i] = bucket.State{Level: left, Wait: left}
}

// banLocked bans a client whose own buckets deny. Probation lasts as long after a ban as the ban; a client denied
// on probation is banned for twice as long.
func (s *shard) banLocked(r *request, i int, _ int64) {
	wanted := r.Charges
	if r.Bans == bucket.LimitBans {
		if j := bucket.At(r.buckets, bucket.Slots); j >= 0 {
			wanted = r.buckets[j].Fits(r.states[j], wanted, r.Tokens(j))
		}
	}
	if r.Verb != bucket.Take || r.Bans == bucket.NoBans || r.fits >= wanted || r.states[i].Level > 0 {
		return
	}
	e := s.entryLocked(r, i)
	if e.full <= r.now {
		e.value = 0
	}
	e.value++
	length := r.buckets[i].BanLength(e.value)
	e.block, e.full = r.now+length, r.now+2*length
	r.states[i].Wait = length
}
