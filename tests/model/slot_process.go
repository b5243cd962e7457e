package model

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// report is readSlots of slots.lua: Redis learns what a process says, if it does not know better.
func (e *slotEntry) report(l *Slots, ended, held int8) {
	switch {
	case !e.Known || l.Mistake == BelievesTheLatest:
		later := e.Later.after(ended)
		*e = slotEntry{Ended: ended, Held: held, Later: later}
	case ended > e.Ended:
		e.Ended, e.Held, e.Later = ended, held, e.Later.after(ended)
	case ended == e.Ended:
		e.Held = min(e.Held, held)
	}
	if e.Known, e.Age = true, 0; l.Mistake == ForgetsTheLater {
		e.Later = 0
	}
}

// decide is guards.lua: an attempt is granted if there is a free slot.
func (l *Slots) decide(s *SlotState, p *slotProcess, a *slotAttempt) (granted bool) {
	e := p.Redis
	e.report(l, a.Ended, a.Held)
	e.Later &^= 1 << a.Number
	used := e.slots()
	for i := range s.Of {
		if other := &s.Of[i]; other != p {
			used += other.Redis.slots()
		}
	}
	if a.Number <= e.Ended || used >= l.N {
		return false
	}
	e.Later |= 1 << a.Number
	p.Redis = e
	return true
}

// change notes that there is something to report.
func (p *slotProcess) change() {
	p.Changed = true
	for i := range p.Attempts {
		p.Attempts[i].Carries = false
	}
	for i := range p.Reports {
		p.Reports[i].Carries = false
	}
}

// answer ends an attempt by its answer. A process that has all slots already keeps none of them.
func (p *slotProcess) answer(l *Slots, j int) {
	a := p.Attempts[j]
	p.Attempts[j] = slotAttempt{}
	switch {
	case a.Granted && p.inFlight() >= l.N:
		p.Unsure = max(p.Unsure, a.Number)
		p.change()
	case a.Granted:
		p.Granted |= 1 << a.Number
		p.Changed = p.Changed && !a.Carries
	}
	p.end()
}

// lose ends an attempt without an answer. Its call may still be on its way.
func (p *slotProcess) lose(l *Slots, j int, takes bool) {
	a := &p.Attempts[j]
	if takes {
		p.Granted |= 1 << a.Number
	}
	if a.Waits = false; l.Mistake != ForgetsTheLost || takes {
		p.Unsure, p.Doubt = max(p.Unsure, a.Number), l.Life
		p.change()
	}
	if a.Stage == done {
		*a = slotAttempt{}
	}
	p.end()
}

// end counts the attempts before the oldest that has not ended as ended.
func (p *slotProcess) end() {
	ended := p.Newest
	for i := range p.Attempts {
		if a := &p.Attempts[i]; a.Waits {
			ended = min(ended, a.Number-1)
		}
	}
	if ended <= p.Ended {
		return
	}
	p.Ended = ended
	p.Held += p.Granted.count() - p.Granted.after(ended).count()
	p.Granted = p.Granted.after(ended)
	if p.Unsure > 0 {
		if p.change(); p.Unsure <= ended {
			p.Unsure = 0
		}
	}
}

// die leaves what is on its way, and what Redis knows.
func (p *slotProcess) die() {
	for i := range p.Attempts {
		if a := &p.Attempts[i]; a.Stage == done {
			*a = slotAttempt{}
		} else {
			a.Waits, a.Carries = false, false
		}
	}
	for i := range p.Reports {
		if r := &p.Reports[i]; r.Stage == done {
			*r = slotReport{}
		} else {
			r.Waits, r.Carries = false, false
		}
	}
	*p = slotProcess{Dead: true, Attempts: p.Attempts, Reports: p.Reports, Redis: p.Redis, Base: p.Base}
}

// tick is a tick. A process is believed for Life, and nothing is on its way for longer.
// It reports whether Redis has forgotten the process.
func (p *slotProcess) tick(l *Slots) (forgotten bool) {
	if p.Redis.Age++; p.Redis.Age >= l.Life || !p.Redis.Known {
		p.Redis, forgotten = slotEntry{}, true
	}
	p.Doubt = max(0, p.Doubt-1)
	for i := range p.Attempts {
		if a := &p.Attempts[i]; a.Number > 0 {
			a.Age++
			if a.Age == l.Life && !a.Waits {
				*a = slotAttempt{}
			} else if a.Age == l.Life || a.Stage == done {
				*a = a.answered() // or its call is lost
			}
		}
	}
	for i := range p.Reports {
		if r := &p.Reports[i]; r.Stage != idle {
			if r.Age++; r.Stage == done {
				r.Age = 0
			} else if r.Age >= l.Life && r.Waits {
				p.giveUp(l, i)
			}
			if r.Age >= l.Life {
				*r = slotReport{}
			}
		}
	}
	return forgotten
}

// oldest is the least number that anybody knows, less 1.
func (p *slotProcess) oldest() int8 {
	oldest := min(p.Newest, p.Ended)
	if p.Dead {
		oldest = 127
	}
	least := func(n int8) { oldest = min(oldest, n) }
	if p.Redis.Known {
		least(p.Redis.Ended)
	}
	for i := range p.Attempts {
		if a := &p.Attempts[i]; a.Number > 0 {
			if least(a.Number); a.Stage == sent {
				least(a.Ended)
			}
		}
	}
	for i := range p.Reports {
		if r := &p.Reports[i]; r.Stage == sent {
			least(r.Ended)
		}
	}
	return oldest
}

// tidy counts the numbers of a process from the oldest that anybody knows: only their order and distances matter.
// And it forgets what has no effect.
func (l *Slots) tidy(p *slotProcess) {
	by := p.oldest()
	if p.Dead && by == 127 {
		*p = slotProcess{Dead: true}
		return
	}
	p.Base += int16(by)
	shift := func(n *int8) { *n = max(0, *n-by) }
	for _, n := range []*int8{&p.Newest, &p.Ended, &p.Unsure} {
		shift(n)
	}
	p.Granted >>= by
	if p.Redis.Known {
		shift(&p.Redis.Ended)
		p.Redis.Later >>= by
	}
	for i := range p.Attempts {
		if a := &p.Attempts[i]; a.Number > 0 {
			shift(&a.Number)
			shift(&a.Ended)
		}
	}
	for i := range p.Reports {
		if r := &p.Reports[i]; r.Stage != idle {
			shift(&r.Ended)
		}
	}
}

func ones(is bool) byte {
	if is {
		return 1
	}
	return 0
}

// Key has the processes, and the calls of each, in one order: they are alike.
func (l *Slots) Key(s *SlotState, key []byte) []byte {
	var of [maxProcesses][]byte
	var room [maxProcesses * 64]byte
	for i := range l.Processes {
		of[i] = s.Of[i].key(room[i*64 : i*64 : i*64+64])
	}
	slices.SortFunc(of[:l.Processes], bytes.Compare)
	key = append(key, byte(s.Flushes), ones(s.Over))
	for i := range l.Processes {
		key = append(key, of[i]...)
	}
	return key
}

func (p *slotProcess) key(b []byte) []byte {
	e := &p.Redis
	b = append(b, ones(p.Dead), byte(p.Newest), byte(p.Ended), byte(p.Held), byte(p.Granted), byte(p.Unsure),
		ones(p.Changed), byte(p.Doubt), ones(p.Unknown),
		ones(e.Known), byte(e.Ended), byte(e.Held), byte(e.Later), byte(e.Age))
	attempts, reports := p.Attempts, p.Reports
	if attempts[0].Number > attempts[1].Number {
		attempts[0], attempts[1] = attempts[1], attempts[0]
	}
	var texts [maxReports][]byte
	var room [maxReports * 7]byte
	for i := range reports {
		r := &reports[i]
		texts[i] = append(room[i*7:i*7:i*7+7], byte(r.Stage), byte(r.Ended), byte(r.Held), ones(r.Doubt), ones(r.Waits),
			ones(r.Carries), byte(r.Age))
	}
	if bytes.Compare(texts[0], texts[1]) > 0 {
		texts[0], texts[1] = texts[1], texts[0]
	}
	for i := range attempts {
		a := &attempts[i]
		b = append(b, byte(a.Number), byte(a.Ended), byte(a.Held), byte(a.Stage), ones(a.Waits), ones(a.Granted),
			ones(a.Carries), byte(a.Age))
	}
	return append(append(b, texts[0]...), texts[1]...)
}

// Describe tells a state.
func (l *Slots) Describe(s *SlotState) string {
	var text strings.Builder
	for i := range l.Processes {
		p := &s.Of[i]
		fmt.Fprintf(&text, "%d holds %d", i, p.inFlight())
		if p.Dead {
			text.WriteString(" and is dead")
		}
		fmt.Fprintf(&text, ", Redis counts %d; ", p.Redis.slots())
	}
	return strings.TrimSuffix(text.String(), "; ")
}
