package simulation_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit"
)

// simSlots says which node of a cluster has which slot. All nodes learn of a change at once.
type simSlots struct {
	nodes  int
	owner  [1 << 14]int
	moving map[int]simMove
	sent   []simRedirection
}

// simRedirection is that a process was sent to another node, or told to try again.
type simRedirection struct {
	process int
	at      time.Time
}

// simMove is a slot that is on its way from the node that owns it to another one.
type simMove struct{ from, to int }

func newSimSlots(nodes int) *simSlots {
	s := &simSlots{nodes: nodes, moving: map[int]simMove{}}
	for slot := range s.owner {
		s.owner[slot] = slot * nodes / len(s.owner)
	}
	return s
}

// slotOf returns the slot of a key with a tag: CRC-16/XMODEM, as Redis' cluster specification has it.
func slotOf(key string) int {
	if _, tag, ok := strings.Cut(key, "{"); ok {
		key, _, _ = strings.Cut(tag, "}")
	}
	crc := uint16(0)
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return int(crc) % (1 << 14)
}

// reply is the reply to CLUSTER SLOTS.
func (s *simSlots) reply() string {
	ranges, text := 0, ""
	for from := 0; from < len(s.owner); ranges++ {
		to := from
		for to+1 < len(s.owner) && s.owner[to+1] == s.owner[from] {
			to++
		}
		text += fmt.Sprintf("*3\r\n:%d\r\n:%d\r\n*3\r\n$9\r\n127.0.0.1\r\n:%d\r\n$6\r\nnode %d\r\n",
			from, to, simPort+s.owner[from], s.owner[from])
		from = to + 1
	}
	return fmt.Sprintf("*%d\r\n%s", ranges, text)
}

// redirectedLocked notes a redirection.
func (v *simServer) redirectedLocked(clientName, redirection string) {
	process, _ := strconv.Atoi(clientName)
	v.slots.sent = append(v.slots.sent, simRedirection{process, time.Now()})
	v.note("server: process %d: %s", process, redirection)
}

// redirected reports whether a call may be late as its process was redirected. go-redis follows for
// several calls together only after a pause of some ten milliseconds, which they wait for again at
// each of their buckets, and so do all calls of that node meanwhile. If they are late, the node's
// breaker may open.
func (s *simulation) redirected(a *simAnswer) bool {
	if s.server.slots == nil {
		return false
	}
	return slices.ContainsFunc(s.server.slots.sent, func(r simRedirection) bool {
		return r.process == a.process && !a.end.Before(r.at) && a.start.Before(r.at.Add(time.Second+s.plan.timeout))
	})
}

// elsewhere reports whether a fault of one node leaves a call alone, as its key is on another: each
// node has a dispatcher of its own once the client knows its nodes. A call that was asked for before that may
// travel with calls to other nodes.
func (s *simulation) elsewhere(f simFault, a *simAnswer) bool {
	slots := s.server.slots
	if slots == nil || f.node < 0 || slots.owner[s.slotOfClient(a.key)] == f.node {
		return false
	}
	moves := slices.ContainsFunc(s.plan.faults, func(f simFault) bool { return slices.Contains(simMoves, f.kind) })
	return !moves && slices.ContainsFunc(s.answers, func(before *simAnswer) bool {
		fromRedis := before.decides() && before.result.Source == ginlimit.FromRedis
		return fromRedis && before.process == a.process && s.at(before.end) < f.at && !before.end.After(a.start)
	})
}

// slotOfClient returns the slot of all keys of a client.
func (s *simulation) slotOfClient(key int) int { return slotOf(s.server.name(simBucketName{key: key})) }

// move moves the slot of a client to another node, or of all clients that are on its node.
func (s *simulation) move(f simFault) {
	v := s.server
	v.mu.Lock()
	from := v.slots.owner[s.slotOfClient(f.key)]
	var keys []int
	for key := range s.plan.keys {
		if key == f.key || f.kind == "move slots" && v.slots.owner[s.slotOfClient(key)] == from {
			keys = append(keys, key)
		}
	}
	v.mu.Unlock()
	if from == f.node {
		f.node = (f.node + 1) % v.slots.nodes
	}
	var all sync.WaitGroup
	for i, key := range keys {
		each := f
		each.key, each.lasts = key, f.lasts/time.Duration(1+i)
		all.Go(func() { s.moveSlot(each) })
	}
	all.Wait()
	v.note("fault ends: %s", f)
}

// moveSlot moves the slot of a client, the keys of one limit after another.
func (s *simulation) moveSlot(f simFault) {
	var keys [][]string
	for i := range s.plan.keys[f.key].versions[0] {
		keys = append(keys, []string{s.server.name(simBucketName{f.key, i})})
	}
	s.server.migrate(s.slotOfClient(f.key), f.node, f.lasts, keys)
}

// migrate moves a slot to a node within a time: its keys step by step, and then the slot itself.
func (v *simServer) migrate(slot, node int, lasts time.Duration, steps [][]string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	move := simMove{from: v.slots.owner[slot], to: node}
	if _, moving := v.slots.moving[slot]; moving || move.from == move.to {
		return
	}
	v.slots.moving[slot] = move
	v.note("cluster: slot %d migrates from node %d to node %d", slot, move.from, move.to)
	pause := func() {
		v.mu.Unlock()
		time.Sleep(lasts / time.Duration(len(steps)+1))
		v.mu.Lock()
		v.tickLocked()
	}
	for _, keys := range steps {
		pause()
		for _, name := range keys {
			v.moveKeyLocked(name, move)
		}
	}
	pause()
	for _, name := range v.nodes[move.from].mini.Keys() { // those that were made again meanwhile, too
		if slotOf(name) == slot {
			v.moveKeyLocked(name, move)
		}
	}
	v.slots.owner[slot] = move.to
	delete(v.slots.moving, slot)
	v.note("cluster: node %d has slot %d", move.to, slot)
}

// moveKeyLocked is MIGRATE: a key takes along how long it has to live.
func (v *simServer) moveKeyLocked(name string, move simMove) {
	from, to := v.nodes[move.from].mini, v.nodes[move.to].mini
	switch {
	case !from.Exists(name):
		return
	case to.Exists(name):
		v.violated("%s is on both nodes between which its slot migrates", name)
		to.Del(name)
	}
	switch from.Type(name) {
	case "list":
		list, _ := from.List(name)
		_, _ = to.Push(name, list...)
	case "hash":
		fields, _ := from.HKeys(name)
		for _, field := range fields {
			to.HSet(name, field, from.HGet(name, field))
		}
	default:
		value, _ := from.Get(name)
		_ = to.Set(name, value)
	}
	if ttl := from.TTL(name); ttl > 0 {
		to.SetTTL(name, ttl)
	}
	from.Del(name)
	v.note("cluster: %s has moved to node %d", name, move.to)
}

// homeLocked returns the node that has a key, or that would have it.
func (v *simServer) homeLocked(name string) *simNode {
	for _, n := range v.nodes {
		if n.mini.Exists(name) {
			return n
		}
	}
	if v.slots == nil {
		return v.nodes[0]
	}
	return v.nodes[v.slots.owner[slotOf(name)]]
}

// checkHomesLocked wants a key on one node, which has its slot or imports it.
func (v *simServer) checkHomesLocked(name string) {
	if v.slots == nil {
		return
	}
	move, moving := v.slots.moving[slotOf(name)]
	var homes []int
	for _, n := range v.nodes {
		if n.mini.Exists(name) {
			homes = append(homes, n.index)
		}
	}
	switch {
	case len(homes) > 1:
		v.violated("guarantee 1: %s is on nodes %v", name, homes)
	case len(homes) == 1 && homes[0] != v.slots.owner[slotOf(name)] && !(moving && homes[0] == move.to):
		v.violated("%s is on node %d, which does not have its slot", name, homes[0])
	}
}
