package scripts_test

import (
	"fmt"
	"slices"
	"strings"
)

// slotLife is for how many milliseconds what a process told of its slots holds.
const slotLife = 10_000

// slotEntry is what is known of the slots of a process.
type slotEntry struct {
	process     string
	ended, held int64   // all attempts up to a number are settled, and these hold so many slots
	later       []int64 // attempts beyond it that hold one
	until       int64   // the millisecond at which it ends
}

func (e *slotEntry) slots() int64 { return e.held + int64(len(e.later)) }

func (e *slotEntry) attempts() string {
	var b strings.Builder
	for _, number := range e.later {
		fmt.Fprintf(&b, "%d,", number)
	}
	return b.String()
}

// slotModel is what slots.lua keeps in a key.
type slotModel struct {
	entries []slotEntry // in the order of the key's value
	start   int64       // the time 0 of the key
	first   int64       // no entry ends before
	ends    int64       // the key
	many    bool        // the value has a list of processes, though there may be only one
}

// slotLook is what is found of a process and of the others.
type slotLook struct {
	own, told slotEntry
	others    []slotEntry
	first     int64 // 0 if there is none
}

func (l *slotLook) inUse() int64 { return l.own.slots() + slotsOf(l.others) }

func slotsOf(entries []slotEntry) (n int64) {
	for i := range entries {
		n += entries[i].slots()
	}
	return n
}

// look finds what is known, with what a process tells of itself.
func (m *slotModel) read(now int64, process string, ended, held int64) *slotLook {
	if m.ends <= now {
		*m = slotModel{}
	}
	if !m.many {
		m.start = now
	}
	l := &slotLook{told: slotEntry{process: process, ended: ended, held: held}}
	l.own = l.told
	all := len(m.entries) > 0 && m.first > now
	if all {
		l.first = m.first
	}
	for _, e := range m.entries {
		if e.until > now && !all && (l.first == 0 || e.until < l.first) {
			l.first = e.until
		}
		switch {
		case e.until <= now:
		case e.process != process:
			l.others = append(l.others, e)
		case ended < e.ended:
			l.own.ended, l.own.held, l.own.later = e.ended, e.held, slices.Clone(e.later)
		case ended == e.ended:
			l.own.held, l.own.later = min(held, e.held), slices.Clone(e.later)
		default:
			l.own.later = slices.DeleteFunc(slices.Clone(e.later), func(number int64) bool { return number <= ended })
		}
	}
	return l
}

// keep keeps what was found. A process without a slot is kept if there is doubt.
func (m *slotModel) keep(now int64, l *slotLook, doubt bool) {
	known := l.own.slots() > 0 || doubt
	switch {
	case known:
		l.own.until, m.ends = now+slotLife, now+slotLife
		if m.first = l.first; m.first == 0 {
			m.first = m.ends
		}
		if m.many = len(l.others) > 0; !m.many {
			m.first = m.ends
		}
		m.entries = append(slices.Clone(l.others), l.own)
	case len(l.others) > 0:
		m.entries, m.first, m.many = l.others, l.first, true
	default:
		*m = slotModel{}
	}
}

// value returns the key's value.
func (m *slotModel) value() string {
	if !m.many {
		e := &m.entries[0]
		return fmt.Sprintf("%s %d %d %s", e.process, e.ended, e.held, e.attempts())
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d %d %d", m.ends-m.start, m.first-m.start, slotsOf(m.entries))
	for i := range m.entries {
		e := &m.entries[i]
		fmt.Fprintf(&b, " %s %d %d %d %d %s;", e.process, e.ended, e.held, e.slots(), e.until-m.start, e.attempts())
	}
	return b.String()
}
