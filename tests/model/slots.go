package model

import (
	"fmt"
	"slices"
)

// Slots are the slots of one key, which processes take for requests in flight.
type Slots struct {
	Processes int
	N         int8 // slots
	Life      int8 // ticks for which Redis believes a process, and for which a call may be on its way
	Window    int8 // how far the numbers of attempts on their way lie apart
	Attempts  int  // of a process on their way, at most
	Reports   int  // likewise
	Flushes   int8 // how often Redis loses its memory, at most
	Late      bool // processes decide themselves while Redis is late
	Mistake   Mistake
}

// The mistakes of Slots.
const (
	BelievesTheLatest Mistake = iota + 100 // a report counts also if a later one came before it
	ForgetsTheLater                        // a report says also what later attempts hold
	ForgetsTheLost                         // an attempt without an answer counts as denied
	ForgetsDoubt                           // Redis forgets a process without slots of which an attempt may still come
	LateForgets                            // it does so if a report says so that a later one came before
)

const maxAttempts, maxReports = 2, 2

// SlotState is a state of Slots.
type SlotState struct {
	Flushes int8
	Over    bool // more may be in flight than there are slots: see Slots.excuse
	Of      [maxProcesses]slotProcess
}

// slotProcess is a process, with what Redis knows of it.
type slotProcess struct {
	Dead                bool
	Newest, Ended, Held int8 // of its attempts: the newest; all up to it have ended; slots that these hold
	Granted             numbers
	Unsure              int8 // the newest attempt after Ended of which Redis may have a wrong state; 0 is none
	Changed             bool // there is something to report
	Doubt               int8 // ticks for which an attempt or a report may still arrive late
	Unknown             bool // guarantee 9 does not count its slots: see Slots.excuse
	Attempts            [maxAttempts]slotAttempt
	Reports             [maxReports]slotReport
	Redis               slotEntry
	Base                int16 // what its numbers count from; it is only told
}

// numbers is a set of attempts.
type numbers uint32

func (n numbers) count() (count int8) {
	for ; n > 0; n &= n - 1 {
		count++
	}
	return count
}

// after is the numbers larger than one.
func (n numbers) after(number int8) numbers { return n &^ (1<<(number+1) - 1) }

// slotEntry is what Redis has of a process: see slots.lua.
type slotEntry struct {
	Known       bool
	Ended, Held int8
	Later       numbers
	Age         int8 // ticks since the last report
}

func (e *slotEntry) slots() int8 { return e.Held + e.Later.count() }

// slotAttempt is an attempt that has not ended, or whose call is on its way.
type slotAttempt struct {
	Number, Ended, Held int8 // what its call says; Number 0 is no attempt
	Stage               int8 // of the call
	Waits               bool // the process waits for it
	Granted             bool // its call was
	Carries             bool // nothing has changed since it was sent
	Age                 int8
}

// slotReport is a report on its way.
type slotReport struct {
	Stage       int8
	Ended, Held int8
	Doubt       bool
	Waits       bool // the process waits for its answer, and sends no other
	Carries     bool // nothing has changed since it was sent
	Age         int8
}

// answered is an attempt whose call was done: what it said matters no more.
func (a *slotAttempt) answered() slotAttempt {
	return slotAttempt{Number: a.Number, Stage: done, Waits: a.Waits, Granted: a.Granted, Carries: a.Carries}
}

// Initial is nobody being in flight.
func (l *Slots) Initial() (s SlotState) { return s }

// inFlight is how many slots the process holds.
func (p *slotProcess) inFlight() int8 { return p.Held + p.Granted.count() }

// mayHold is how many slots it holds or may still learn that it does.
func (p *slotProcess) mayHold() int8 {
	n := p.inFlight()
	for i := range p.Attempts {
		if a := &p.Attempts[i]; a.Waits && a.Granted {
			n++
		}
	}
	return n
}

// Broken is guarantee 9: Redis never counts too few slots of a process, and not for long too many, and no more are in
// flight than there are.
func (l *Slots) Broken(s *SlotState) string {
	all := int8(0)
	for i := range s.Of {
		p := &s.Of[i]
		if all += p.inFlight(); p.inFlight() > l.N {
			return fmt.Sprintf("process %d holds %d slots of %d", i, p.inFlight(), l.N)
		}
		if p.Dead || p.Unknown {
			continue
		}
		if p.Redis.slots() < p.mayHold() {
			return fmt.Sprintf("process %d holds %d slots, of which Redis counts %d", i, p.mayHold(), p.Redis.slots())
		}
		if s.Flushes == 0 && p.quiet() && p.inFlight() == 0 && p.Redis.slots() > 0 { // else it reports again
			return fmt.Sprintf("process %d holds no slot and has nothing to report, and Redis counts %d", i, p.Redis.slots())
		}
	}
	if all > l.N && !s.Over {
		return fmt.Sprintf("%d are in flight of %d", all, l.N)
	}
	return ""
}

// quiet reports whether nothing is on its way, and nothing to report.
func (p *slotProcess) quiet() bool {
	return p.Attempts == [maxAttempts]slotAttempt{} && p.Reports == [maxReports]slotReport{} && !p.Changed
}

// excuse notes what guarantee 9 excuses. Redis has lost its memory, or has not heard of a process for Life, or the
// process has decided itself: until Redis knows its slots again, others may take as many. What is in flight then stays
// so until enough of it has ended.
func (s *SlotState) excuse(p *slotProcess) {
	if !p.Dead && p.mayHold() > 0 {
		p.Unknown, s.Over = true, true
	}
}

// know ends what is excused once Redis knows each slot.
func (l *Slots) know(s *SlotState) {
	all, unknown := int8(0), false
	for i := range s.Of {
		p, e := &s.Of[i], &s.Of[i].Redis
		later := p.Granted
		for j := range p.Attempts {
			if a := &p.Attempts[j]; a.Waits && a.Granted {
				later |= 1 << a.Number
			}
		}
		p.Unknown = p.Unknown && !(e.Ended == p.Ended && e.Held >= p.Held && later&^e.Later == 0)
		unknown = unknown || p.Unknown
		all += max(p.mayHold(), e.slots())
	}
	if !unknown && all <= l.N {
		s.Over = false
	}
}

// What may happen to Slots.
const (
	makesAttempt   = "process %d makes attempt %d"
	releasesSlotOf = "process %d releases the slot of attempt %d"
	releases       = "process %d releases a slot"
	reports        = "process %d reports %d slots up to %d"
	dies           = "process %d dies"
	decides        = "Redis decides on attempt %d of process %d"
	hasAnswer      = "process %d has the answer to attempt %d: granted %d"
	givesUp        = "process %d gives attempt %d up"
	takesItself    = "process %d takes a slot for attempt %d itself"
	hasReport      = "Redis has the report of process %d of %d slots up to %d"
	reportArrived  = "process %d knows that its report has arrived"
	givesReportUp  = "process %d gives its report up"
	losesMemory    = "Redis loses its memory"
	ticks          = "a tick"
)

// Steps are what may happen.
func (l *Slots) Steps(s *SlotState, next func(Step, SlotState)) {
	for i := range int16(l.Processes) {
		l.stepsOf(s, i, func(what Step, t SlotState) {
			l.tidy(&t.Of[i])
			l.know(&t)
			next(what, t)
		})
	}
	if s.Flushes < l.Flushes {
		t := *s
		t.Flushes++
		for i := range t.Of {
			t.Of[i].Redis = slotEntry{}
			t.excuse(&t.Of[i])
		}
		next(step(losesMemory), t)
	}
	t := *s
	for i := range l.Processes {
		if known := t.Of[i].Redis.Known; t.Of[i].tick(l) && known {
			t.excuse(&t.Of[i])
		}
		l.tidy(&t.Of[i])
	}
	l.know(&t)
	next(step(ticks), t)
}

// stepsOf are what a process may do, and what may happen to its calls.
func (l *Slots) stepsOf(s *SlotState, i int16, next func(Step, SlotState)) {
	p := &s.Of[i]
	do := func(what Step, f func(t *SlotState, p *slotProcess)) {
		t := *s
		f(&t, &t.Of[i])
		next(what, t)
	}
	for j := range p.Attempts {
		l.stepsOfAttempt(p, i, j, do)
	}
	for j := range p.Reports {
		l.stepsOfReport(p, i, j, do)
	}
	if p.Dead {
		return
	}
	if free := slices.Index(p.Attempts[:l.Attempts], slotAttempt{}); free >= 0 && p.Newest-p.oldest() < l.Window {
		do(step(makesAttempt, i, p.Base+int16(p.Newest)+1), func(_ *SlotState, p *slotProcess) {
			p.Newest++
			p.Attempts[free] = slotAttempt{Number: p.Newest, Ended: p.Ended, Held: p.Held, Stage: sent, Waits: true,
				Carries: true}
		})
	}
	for number := range int8(32) {
		if p.Granted&(1<<number) != 0 {
			do(step(releasesSlotOf, i, p.Base+int16(number)), func(_ *SlotState, p *slotProcess) {
				p.Granted &^= 1 << number
				p.Unsure = max(p.Unsure, number)
				p.change()
			})
		}
	}
	if p.Held > 0 {
		do(step(releases, i), func(_ *SlotState, p *slotProcess) {
			p.Held--
			p.change()
		})
	}
	waits := slices.ContainsFunc(p.Reports[:], func(r slotReport) bool { return r.Waits })
	if free := slices.Index(p.Reports[:l.Reports], slotReport{}); !waits && free >= 0 && (p.Changed || p.inFlight() > 0) {
		do(step(reports, i, int16(p.Held), p.Base+int16(p.Ended)),
			func(_ *SlotState, p *slotProcess) {
				p.Reports[free] = slotReport{Stage: sent, Ended: p.Ended, Held: p.Held, Waits: true, Carries: true,
					Doubt: p.Doubt > 0 && l.Mistake != ForgetsDoubt}
			})
	}
	do(step(dies, i), func(_ *SlotState, p *slotProcess) { p.die() })
}

type doSlots = func(what Step, f func(t *SlotState, p *slotProcess))

// stepsOfAttempt are what may become of an attempt.
func (l *Slots) stepsOfAttempt(p *slotProcess, i int16, j int, do doSlots) {
	a := &p.Attempts[j]
	if a.Number == 0 {
		return
	}
	number := p.Base + int16(a.Number)
	if a.Stage == sent {
		do(step(decides, number, i), func(t *SlotState, p *slotProcess) {
			a := &p.Attempts[j]
			a.Granted = l.decide(t, p, a)
			if *a = a.answered(); !a.Waits {
				*a = slotAttempt{}
			}
		})
	}
	if !a.Waits {
		return
	}
	if a.Stage == done {
		do(step(hasAnswer, i, number, int16(ones(a.Granted))),
			func(t *SlotState, p *slotProcess) { p.answer(l, j) })
	}
	do(step(givesUp, i, number), func(t *SlotState, p *slotProcess) {
		p.lose(l, j, false)
	})
	if l.Late && p.inFlight() < l.N {
		do(step(takesItself, i, number), func(t *SlotState, p *slotProcess) {
			p.lose(l, j, true)
			t.excuse(p)
		})
	}
}

// stepsOfReport are what may become of a report.
func (l *Slots) stepsOfReport(p *slotProcess, i int16, j int, do doSlots) {
	r := &p.Reports[j]
	if r.Stage == sent {
		do(step(hasReport, i, int16(r.Held), p.Base+int16(r.Ended)),
			func(_ *SlotState, p *slotProcess) {
				r := &p.Reports[j]
				waits := r.Waits
				p.Redis.report(l, r.Ended, r.Held)
				late := r.Ended < p.Redis.Ended && l.Mistake != LateForgets
				if p.Redis.slots() == 0 && !r.Doubt && !late {
					p.Redis = slotEntry{}
				}
				if *r = (slotReport{Stage: done, Waits: true, Carries: r.Carries}); !waits {
					*r = slotReport{}
				}
			})
	}
	if r.Stage == done {
		do(step(reportArrived, i), func(_ *SlotState, p *slotProcess) {
			p.Changed = p.Changed && !p.Reports[j].Carries
			p.Reports[j] = slotReport{}
		})
	}
	if r.Waits {
		do(step(givesReportUp, i), func(_ *SlotState, p *slotProcess) { p.giveUp(l, j) })
	}
}

// giveUp has the process wait no more for a report, which may still be on its way.
func (p *slotProcess) giveUp(l *Slots, j int) {
	p.Doubt = l.Life
	p.Changed = true // it is sent again
	r := &p.Reports[j]
	if r.Waits, r.Carries = false, false; r.Stage == done {
		*r = slotReport{}
	}
}
