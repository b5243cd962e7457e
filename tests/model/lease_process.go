package model

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// take charges tokens of the limit as far as there is room, and returns how many.
func (r *redisBuckets) take(l *Leases, n int16) int16 {
	n = max(0, min(n, (l.capacity()-r.Level)/l.Cost))
	r.Level += n * l.Cost
	return n
}

// decide is lease.lua.
func (r *redisBuckets) decide(l *Leases, c leaseCall) leaseCall {
	room := max(0, l.H/2*l.Cost-r.Ahead) / l.Cost
	c.Stage, c.Asked = done, c.Held
	c.Held = min(c.Held, room)
	c.Ahead = r.take(l, min(c.Ahead, room-c.Held))
	r.Ahead += (c.Ahead + c.Held) * l.Cost
	if l.Mistake == HeldForFree {
		r.Ahead -= c.Held * l.Cost
	}
	c.After = r.Level
	return c
}

// giveBack is a Return, with the record of what was given back.
func (r *redisBuckets) giveBack(l *Leases, b leaseReturn) {
	units := min(l.claimed(b, r.Given), r.Level)
	if r.Level -= units; units > 0 && r.Level > 0 {
		r.Given = [2]givenUnits{{units, 0, b.Of.Age + l.Lost}, r.Given[0]}
	}
}

// claimed is how many units a call may still give back: see bucket.Claim.
func (l *Leases) claimed(b leaseReturn, given [2]givenUnits) int16 {
	all := b.Tokens * l.Cost
	age := b.Of.Age + l.Lost // its clock may have lost these
	sure, behind := max(0, all-age*l.Drain), max(0, max(b.Of.After, all)-age*l.Drain)
	for _, g := range given {
		if g.Ago <= age && g.Ago+g.Age >= b.Of.Answered {
			behind -= g.Units
		}
	}
	return max(0, min(all, max(sure, behind)))
}

// failOver has the replica take over. What was charged since then is lost, to the limit and to the lease bucket, where
// the same tokens are charged.
func (s *LeaseState) failOver() {
	s.Missed += max(0, s.Redis.Level-s.Replica.Level, s.Redis.Ahead-s.Replica.Ahead)
	s.Redis, s.Replica, s.Written = s.Replica, redisBuckets{}, false
	s.Fails++
}

func (r *redisBuckets) tick(l *Leases) {
	r.Level, r.Ahead = max(0, r.Level-l.Drain), max(0, r.Ahead-l.Drain)
	kept := 0
	for _, g := range r.Given {
		if g.Ago++; g.Units > 0 && g.Ago*l.Drain < l.B*l.Cost { // else no call is left to which it matters
			r.Given[kept] = g
			kept++
		}
	}
	clear(r.Given[kept:])
}

// use uses tokens, first those that were taken first.
func (p *leaseProcess) use(n int16) {
	p.Left -= n
	p.Own = min(p.Own, p.Left)
}

// holds is how many tokens it may hold for longer.
func (p *leaseProcess) holds(l *Leases) int16 {
	if p.Last.Age >= l.life() {
		return 0
	}
	return p.Left
}

// answer is keepLease: a new lease of what was taken ahead, and of what was held before.
func (p *leaseProcess) answer(l *Leases) {
	c := p.Call
	call := charged{c.After, c.Age, 0}
	if l.Mistake == FromAnswer {
		call.Age = 0
	}
	before, kept, age := *p, int16(0), call.Age
	switch wanted := min(p.Left, c.Asked); {
	case p.Last.Age >= l.life():
	case c.Held < wanted && p.Last.Age < l.used(): // the new lease ends when the one before would have
		kept, age = wanted, p.Last.Age
	default:
		kept = min(p.Left, c.Held)
	}
	p.Last = charged{c.After, age, 0}
	p.Own, p.Left, p.First, p.Call = c.Ahead, c.Ahead+kept, charged{}, leaseCall{}
	if kept > 0 {
		p.First = before.firstOf(before.Left)
	}
	if before.Left -= kept; before.Left > 0 {
		before.Own = min(before.Own, before.Left)
		p.sendBack(l, &before)
	}
}

// firstOf is the call that counts as the one that took the last n tokens.
func (p *leaseProcess) firstOf(n int16) charged {
	if n <= p.Own {
		return p.Last
	}
	return p.First
}

// end ends the lease, and gives back what is left of it.
func (p *leaseProcess) end(l *Leases) {
	before := *p
	p.Left, p.Own = 0, 0
	p.sendBack(l, &before)
}

// sendBack gives back the tokens of a lease: those that its own call took, and those of earlier calls. What finds no
// place among what is in flight is lost.
func (p *leaseProcess) sendBack(l *Leases, of *leaseProcess) {
	own := min(of.Own, of.Left)
	for _, b := range []leaseReturn{{own, of.Last}, {of.Left - own, of.First}} {
		if i := slices.Index(p.Back[:], leaseReturn{}); i >= 0 && b.Tokens > 0 {
			p.Back[i] = b
		}
	}
}

// tick is a tick of its clock.
func (p *leaseProcess) tick(l *Leases) {
	for _, c := range []*charged{&p.Last, &p.First, &p.Back[0].Of, &p.Back[1].Of} {
		c.Age, c.Answered = c.Age+1, c.Answered+1
	}
	p.Call.Age++
}

// forget forgets what has no effect any more, so that there are fewer states.
func (l *Leases) forget(s *LeaseState, p *leaseProcess) {
	returns := s.Returns < l.Returns
	gone := func(tokens int16, c charged) bool {
		return tokens <= 0 || !returns || c.Age >= l.B*l.Cost/l.Drain ||
			l.claimed(leaseReturn{tokens, c}, [2]givenUnits{}) == 0
	}
	for i := range p.Back {
		if b := &p.Back[i]; gone(b.Tokens, b.Of) {
			*b = leaseReturn{}
		}
	}
	if p.Back[0].Tokens == 0 {
		p.Back[0], p.Back[1] = p.Back[1], p.Back[0]
	}
	if !returns {
		p.First, p.Last.After, p.Last.Answered, p.Own, p.Call.After = charged{}, 0, 0, 0, 0
	}
	if p.Left <= p.Own {
		p.First = charged{}
	}
	over := p.Last.Age >= l.life()
	if p.Left == 0 || over && (gone(p.Own, p.Last) && gone(p.Left-p.Own, p.First)) {
		p.Left, p.Own, p.Last, p.First = 0, 0, charged{}, charged{}
	}
	defer func() {
		if steady := p.Steady; *p == (leaseProcess{Steady: steady}) {
			p.Steady = l.d() // it is not looked at
		}
	}()
	c := &p.Call
	switch late := c.Age >= l.life(); {
	case c.Stage == idle:
		*c = leaseCall{}
	case l.Mistake == FromAnswer:
		c.Age = min(c.Age, l.life())
	case late && (c.Stage == sent || gone(c.Ahead, charged{After: c.After, Age: c.Age})):
		*c = leaseCall{}
	}
}

// Key has the processes in one order: they are alike, so what one order of them can do any other can.
func (l *Leases) Key(s *LeaseState, key []byte) []byte {
	var of [maxProcesses][]byte
	var room [maxProcesses * 32]byte
	for i := range l.Processes {
		p := &s.Of[i]
		b := room[i*32 : i*32 : i*32+32]
		b = append(b, byte(p.Left), byte(p.Own), byte(p.Steady))
		for _, c := range [...]charged{p.Last, p.First, p.Back[0].Of, p.Back[1].Of} {
			b = append(b, byte(c.After), byte(c.Age), byte(c.Answered))
		}
		c := &p.Call
		of[i] = append(b, byte(p.Back[0].Tokens), byte(p.Back[1].Tokens),
			byte(c.Stage), byte(c.Age), byte(c.Ahead), byte(c.Held), byte(c.Asked), byte(c.After))
	}
	slices.SortFunc(of[:l.Processes], bytes.Compare)
	for _, r := range [...]redisBuckets{s.Redis, s.Replica} {
		key = append(key, byte(r.Level), byte(r.Ahead))
		for _, g := range r.Given {
			key = append(key, byte(g.Units), byte(g.Ago), byte(g.Age))
		}
	}
	written := byte(0)
	if s.Written {
		written = 1
	}
	key = append(key, written, byte(s.Fails), byte(s.Returns), byte(s.Used), byte(s.Missed))
	return append(append(append(key, of[0]...), of[1]...), of[2]...)
}

// Describe tells a state.
func (l *Leases) Describe(s *LeaseState) string {
	var text strings.Builder
	fmt.Fprintf(&text, "level %d, ahead %d, used %d", s.Redis.Level, s.Redis.Ahead, s.Used)
	if s.Fails > 0 {
		fmt.Fprintf(&text, ", lost %d", s.Missed)
	}
	for i := range l.Processes {
		if p := &s.Of[i]; p.Left > 0 {
			fmt.Fprintf(&text, "; %d holds %d since %d", i, p.Left, p.Last.Age)
		}
	}
	return text.String()
}
