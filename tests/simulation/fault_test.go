package simulation_test

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
	node    int // of a cluster; -1 for all
	key     int
	extra   time.Duration
}

func (f simFault) String() string {
	return fmt.Sprintf("%s (process %d, node %d, key %d, for %s, extra %s)", f.kind, f.process,
		f.node, f.key, f.lasts, f.extra)
}

// faults by what they cost. A hard fault may keep a process from the server, for a second longer
// than it lasts. A soft one costs single decisions while it lasts, a change of data, of limits or
// of the clock none.
var (
	simHardFaults = []string{"freeze", "partition", "cut", "cut one", "half-open",
		"lost replies", "restart", "restart empty", "slow", "LOADING", "BUSY"}
	simSoftFaults = []string{"OOM", "READONLY", "wrong type"}
	simMoves      = []string{"move slot", "move slots"} // of a cluster
	simChanges    = []string{"FLUSHALL", "SCRIPT FLUSH", "other limits", "Close"}
)

func (f simFault) hard() bool { return slices.Contains(simHardFaults, f.kind) }

// end is when everything that the fault has broken works again.
func (f simFault) end() time.Duration { return f.at + f.lasts }

func (p *simPlan) drawFault(r *rand.Rand, length time.Duration) simFault {
	f := simFault{at: upTo(r, length), process: r.IntN(len(p.processes)), key: r.IntN(len(p.keys)), node: -1}
	if p.nodes > 1 && r.IntN(3) > 0 {
		f.node = r.IntN(p.nodes)
	}
	switch r.IntN(5) {
	case 0:
		f.kind = pick(r, simSoftFaults...)
	case 1:
		f.kind = pick(r, simChanges...)
	case 2:
		if f.kind = "clock"; p.nodes > 1 && r.IntN(3) > 0 {
			f.kind = pick(r, simMoves...)
		}
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
	if slices.Contains([]string{"wrong type", "other limits", "Close", "clock"}, f.kind) {
		f.node = -1
	}
	switch f.kind {
	case "freeze", "restart", "restart empty", "LOADING", "BUSY", "OOM", "READONLY", "wrong type":
		f.process = -1
	case "Close":
		f.process = max(0, f.process)
	case "clock":
		f.drawSetting(r)
	case "move slot", "move slots":
		f.process, f.node = -1, r.IntN(p.nodes)
	}
	return f
}

// inflict has a fault happen, and ends it.
func (s *simulation) inflict(f simFault) {
	s.note("fault: %s", f)
	if slices.Contains(simMoves, f.kind) {
		s.move(f)
		return
	}
	n, v := s.network, s.server
	var paths, all []simPath // to the nodes, of the processes that it hits, and of all
	for node := range s.server.nodes {
		for process := range s.members {
			if f.node >= 0 && f.node != node {
				continue
			}
			all = append(all, simPath{process, node})
			if f.process < 0 || f.process == process {
				paths = append(paths, simPath{process, node})
			}
		}
	}
	set := func(states map[int]bool, on bool) func() {
		return func() {
			for _, path := range all {
				states[path.node] = on
			}
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
		begin, end = set(n.frozen, true), set(n.frozen, false)
	case "partition":
		block := func(on bool) func() {
			return func() {
				for _, path := range paths {
					n.blocked[path] = on
				}
			}
		}
		begin, end = block(true), block(false)
	case "slow":
		add := func(d time.Duration) func() {
			return func() {
				for _, path := range paths {
					n.slow[path] += d
				}
			}
		}
		begin, end = add(f.extra), add(-f.extra)
	case "cut":
		begin = func() { broken = n.openLocked(paths); cut() }
	case "cut one":
		begin = func() {
			if broken = n.openLocked(paths); len(broken) > 0 {
				broken = broken[:1]
			}
			cut()
		}
	case "half-open", "lost replies":
		begin = func() {
			broken = n.openLocked(paths)
			for _, c := range broken {
				c.peer.vanish, c.vanish = true, f.kind == "half-open"
			}
		}
		end = cut
	case "restart", "restart empty":
		begin = func() { set(n.down, true)(); broken = n.openLocked(all); cut() }
		end = set(n.down, false)
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
	hit := v.nodes
	if f.node >= 0 {
		hit = hit[f.node : f.node+1]
	}
	for _, n := range hit {
		n.onFault(f.kind, text, begins)
	}
	switch f.kind {
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
	if begins && f.kind == "other limits" {
		if all := v.plan.keys[f.key].versions; !slices.Equal(all[0], all[1]) { // else its calls look like the first's
			v.version[f.key] = 1
		}
		for limit := range v.counted[f.key] {
			v.filledLocked(simBucketName{key: f.key, limit: limit}, "limits")
		}
	}
}

// onFault has a fault begin or end on a node.
func (n *simNode) onFault(kind, text string, begins bool) {
	switch kind {
	case "LOADING", "BUSY":
		n.refuses = text
	case "OOM", "READONLY":
		n.noWrites = text
	}
	if begins && (kind == "restart empty" || kind == "FLUSHALL") {
		n.emptyLocked()
	}
	if begins && (kind == "restart empty" || kind == "restart" || kind == "SCRIPT FLUSH") {
		n.do(nil, "SCRIPT", "FLUSH")
	}
}
