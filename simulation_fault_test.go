package ginlimit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// simFault is something that happens to the server, the network, a key or a limiter.
type simFault struct {
	kind    string
	at      time.Duration
	lasts   time.Duration
	process int // -1 for all
	key     int
	extra   time.Duration
}

func (f simFault) String() string {
	return fmt.Sprintf("%s (process %d, key %d, for %s, extra %s)", f.kind, f.process, f.key, f.lasts, f.extra)
}

// faults by what they cost. A hard fault may keep a process from the server, for a second longer than it lasts. A soft one
// costs single decisions while it lasts, a change of data, of limits or of the clock none.
var (
	simHardFaults = []string{"freeze", "partition", "cut", "cut one", "half-open", "lost replies", "restart", "restart empty", "slow", "LOADING", "BUSY"}
	simSoftFaults = []string{"OOM", "READONLY", "wrong type"}
	simChanges    = []string{"FLUSHALL", "SCRIPT FLUSH", "other limits", "Close"}
)

func (f simFault) hard() bool { return slices.Contains(simHardFaults, f.kind) }

// end is when everything that the fault has broken works again.
func (f simFault) end() time.Duration { return f.at + f.lasts }

func (p *simPlan) drawFault(r *rand.Rand, length time.Duration) simFault {
	f := simFault{at: upTo(r, length), process: r.IntN(len(p.processes)), key: r.IntN(len(p.keys))}
	switch r.IntN(5) {
	case 0:
		f.kind = pick(r, simSoftFaults...)
	case 1:
		f.kind = pick(r, simChanges...)
	case 2:
		f.kind = "clock"
	default:
		f.kind = pick(r, simHardFaults...)
	}
	if r.IntN(3) == 0 {
		f.process = -1
	}
	f.lasts = time.Millisecond + upTo(r, pick(r, p.timeout, 4*p.timeout, 600*time.Millisecond, time.Second))
	f.extra = upTo(r, 2*p.timeout)
	switch f.kind {
	case "cut", "cut one", "FLUSHALL", "SCRIPT FLUSH", "other limits", "Close":
		f.lasts = 0
	}
	switch f.kind {
	case "freeze", "restart", "restart empty", "LOADING", "BUSY", "OOM", "READONLY", "wrong type":
		f.process = -1
	case "Close":
		f.process = max(0, f.process)
	case "clock":
		f.drawSetting(r)
	}
	return f
}

// inflict has a fault happen, and ends it.
func (s *simulation) inflict(f simFault) {
	s.note("fault: %s", f)
	n, v := s.network, s.server
	processes := []int{f.process}
	if f.process < 0 {
		processes = nil
		for i := range s.members {
			processes = append(processes, i)
		}
	}
	var broken []*simConn
	cut := func() {
		for _, c := range broken {
			c.resetLocked()
		}
	}
	begin, end := func() {}, func() {} // on the network
	switch f.kind {
	case "freeze":
		begin, end = func() { n.frozen = true }, func() { n.frozen = false }
	case "partition":
		set := func(on bool) func() {
			return func() {
				for _, p := range processes {
					n.blocked[p] = on
				}
			}
		}
		begin, end = set(true), set(false)
	case "slow":
		add := func(d time.Duration) func() {
			return func() {
				for _, p := range processes {
					n.slow[p] += d
				}
			}
		}
		begin, end = add(f.extra), add(-f.extra)
	case "cut":
		begin = func() { broken = n.openLocked(f.process); cut() }
	case "cut one":
		begin = func() {
			if broken = n.openLocked(f.process); len(broken) > 0 {
				broken = broken[:1]
			}
			cut()
		}
	case "half-open", "lost replies":
		begin = func() {
			broken = n.openLocked(f.process)
			for _, c := range broken {
				c.peer.vanish, c.vanish = true, f.kind == "half-open"
			}
		}
		end = cut
	case "restart", "restart empty":
		begin = func() { n.down = true; broken = n.openLocked(-1); cut() }
		end = func() { n.down = false }
	}
	s.network.change(begin)
	s.onServer(f, true)
	time.Sleep(f.lasts)
	s.onServer(f, false)
	s.network.change(end)
	v.note("fault ends: %s", f)
	if f.kind == "Close" {
		s.closeMember(f.process)
	}
}

// onServer has a fault begin or end on the server.
func (s *simulation) onServer(f simFault, begins bool) {
	v := s.server
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tickLocked()
	errors := map[string]string{
		"LOADING":  "LOADING Redis is loading the dataset in memory",
		"BUSY":     "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"OOM":      "OOM command not allowed when used memory > 'maxmemory'.",
		"READONLY": "READONLY You can't write against a read only replica.",
	}
	text := errors[f.kind]
	if !begins {
		text = ""
	}
	switch f.kind {
	case "LOADING", "BUSY":
		v.refuses = text
	case "OOM", "READONLY":
		v.noWrites = text
	case "wrong type":
		if begins {
			v.occupyLocked(f.key)
		} else {
			v.vacateLocked(f.key)
		}
	case "clock":
		if begins {
			v.setClockLocked(f.extra)
		} else if f.lasts > 0 {
			v.setClockLocked(-f.extra)
		}
	}
	if !begins {
		return
	}
	switch f.kind {
	case "restart empty":
		v.emptyLocked()
		v.forgetScriptsLocked()
	case "restart", "SCRIPT FLUSH":
		v.forgetScriptsLocked()
	case "FLUSHALL":
		v.emptyLocked()
	case "other limits":
		v.version[f.key] = 1
	}
}
