package simulation_test

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// simNode is the only server, or a master of a cluster: a miniredis without a listener. miniredis
// knows nothing of slots, so what a node answers for those that it does not have, or gives away, is
// said here, as Redis 7 says it.
//
// The lock of the simServer guards its fields.
type simNode struct {
	witness *simServer
	index   int
	mini    *miniredis.Miniredis
	server  *server.Server

	refuses  string                // the error with which it answers every call
	noWrites string                // the error with which it answers writes
	asking   map[*server.Peer]bool // who has sent ASKING, and nothing since
	asked    bool                  // the call that runs followed ASKING
	plain    map[string]string     // the SHA of scripts with flags, by which the node has them without
}

// simInside names the connection on which a call is handed on, once it was seen.
const simInside = "the simulation itself"

func newSimNode(v *simServer, index int) (*simNode, error) {
	n := &simNode{witness: v, index: index, mini: miniredis.NewMiniRedis(),
		asking: map[*server.Peer]bool{}, plain: map[string]string{}}
	n.mini.ClockTTL(true)
	n.mini.SetTime(v.now())
	conn, err := n.mini.Dial() // has it start without a listener
	if err != nil {
		return nil, err
	}
	_ = conn.Close()
	n.server = n.mini.Server()
	n.server.SetPreHook(n.intercept)
	return n, nil
}

// simPort is the port of the first node.
const simPort = 6379

func simNodeAddr(index int) string { return fmt.Sprintf("127.0.0.1:%d", simPort+index) }

// simNodeAt returns the index of the node with an address.
func simNodeAt(addr string) (index int) {
	_, port, _ := net.SplitHostPort(addr)
	_, _ = fmt.Sscan(port, &index)
	return index - simPort
}

// simWrites are the commands of scripts that write, and simReads those that read. Of all the first arguments are keys.
var (
	simWrites = []string{"SET", "HSET", "HDEL", "DEL", "UNLINK", "PEXPIRE", "INCRBY", "RPUSH", "LSET", "LTRIM"}
	simReads  = []string{"GET", "HMGET", "HSCAN", "PTTL", "LRANGE", "LINDEX", "LLEN"}
)

// intercept sees each command before the server does, and reports whether it was answered. A script's own commands come
// through here too, while its caller has the lock.
func (n *simNode) intercept(peer *server.Peer, command string, args ...string) bool {
	write := slices.Contains(simWrites, command)
	switch {
	case command == "MGET" && len(n.witness.nodes) > 1 || write || slices.Contains(simReads, command):
		keys := args[:1]
		if command == "MGET" {
			keys = args
		}
		return n.refusesInside(peer, command, write, keys)
	case peer.ClientName == simInside ||
		!slices.Contains([]string{"PING", "SCRIPT", "EVAL", "EVALSHA", "CLUSTER", "ASKING"}, command):
		return false
	}
	v := n.witness
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tickLocked()
	n.asked = n.asking[peer]
	delete(n.asking, peer)
	switch {
	case n.refuses != "" && (command != "CLUSTER" || strings.HasPrefix(n.refuses, "BUSY")):
		peer.WriteError(n.refuses)
	case command == "ASKING":
		n.asking[peer] = true
		peer.WriteOK()
	case command == "CLUSTER":
		peer.WriteRaw(v.slots.reply())
	case strings.HasPrefix(command, "EVAL"):
		if redirection := n.redirectionLocked(declared(args)); redirection != "" {
			v.redirectedLocked(peer.ClientName, redirection)
			peer.WriteError(redirection)
			return true
		}
		peer.WriteRaw(v.executeLocked(n, peer.ClientName, command, n.withoutFlags(command, args)))
	default:
		return false
	}
	return true
}

// refusesInside answers a script's command if it may not write, or not use its keys.
func (n *simNode) refusesInside(peer *server.Peer, command string, write bool, keys []string) bool {
	frees := slices.Contains([]string{"DEL", "UNLINK", "PEXPIRE", "LTRIM"}, command)
	switch {
	case !slices.ContainsFunc(keys, func(key string) bool { return !n.mayUse(peer, key) }):
	default:
		peer.WriteError("ERR Script attempted to access a non local key in a cluster node")
		return true
	}
	if !write || n.noWrites == "" || frees && strings.HasPrefix(n.noWrites, "OOM") {
		return false
	}
	peer.WriteError(n.noWrites)
	return true
}

// mayUse reports whether the script that runs may use a key: it is here, or would be.
func (n *simNode) mayUse(script *server.Peer, key string) bool {
	slots := n.witness.slots
	if slots == nil {
		return true
	}
	move, moving := slots.moving[slotOf(key)]
	if slots.owner[slotOf(key)] == n.index {
		return !moving || n.do(script.Ctx, "EXISTS", key) == ":1\r\n"
	}
	return moving && move.to == n.index && n.asked
}

// redirectionLocked is what Redis answers, instead of running it, to a call that declares these keys; "" is nothing.
func (n *simNode) redirectionLocked(keys []string) string {
	slots := n.witness.slots
	if slots == nil {
		return ""
	}
	slot, missing := slotOf(keys[0]), 0
	for _, key := range keys {
		if slotOf(key) != slot {
			return "CROSSSLOT Keys in request don't hash to the same slot"
		}
		if !n.mini.Exists(key) {
			missing++
		}
	}
	move, moving := slots.moving[slot]
	switch owner := slots.owner[slot]; {
	case owner == n.index && moving && missing == len(keys):
		return fmt.Sprintf("ASK %d %s", slot, simNodeAddr(move.to))
	case owner == n.index && moving && missing > 0,
		owner != n.index && moving && move.to == n.index && n.asked && missing > 0 && len(keys) > 1:
		return "TRYAGAIN Multiple keys request during rehashing of slot"
	case owner == n.index, moving && move.to == n.index && n.asked:
		return ""
	default:
		return fmt.Sprintf("MOVED %d %s", slot, simNodeAddr(owner))
	}
}

// withoutFlags makes a comment of a script's first line if that has flags, which Redis knows since
// 7.0, and miniredis does not.
func (n *simNode) withoutFlags(command string, args []string) []string {
	hash := func(script string) string { return redis.NewScript(script).Hash() }
	script, flags := strings.CutPrefix(args[0], "#!")
	switch {
	case command == "EVAL" && flags:
		script = "--" + script
		n.plain[hash(args[0])] = hash(script)
	case command == "EVALSHA" && n.plain[args[0]] != "":
		script = n.plain[args[0]]
	default:
		return args
	}
	return append([]string{script}, args[1:]...)
}

// do has the node do a command, of a script if that is its context, and returns the reply.
func (n *simNode) do(script any, args ...string) string {
	var reply bytes.Buffer
	inside := server.NewPeer(bufio.NewWriter(&reply))
	inside.ClientName, inside.Ctx = simInside, script
	n.server.Dispatch(inside, args)
	inside.Flush()
	return reply.String()
}

// emptyLocked is FLUSHALL. It takes away what stood in the way of keys, too.
func (n *simNode) emptyLocked() {
	v := n.witness
	for name, b := range v.names {
		if v.homeLocked(name) == n {
			if n.mini.Exists(name) {
				v.filledLocked(b, "fill")
			}
			v.reference.reset(v.countedAs(b, v.counted[b.key][b.limit]))
			delete(v.foreign, name)
		}
	}
	n.mini.FlushAll()
}

// The server's clock may be set, forward or back. Redis keeps the time of day at which a key
// expires. So a clock that is set forward drains all buckets by as much at once, and one that is
// set back keeps them for as much longer.
//
// What is promised by the server's clock is checked by that clock: guarantee 1, and what RetryAfter
// says. The deny cache goes by the process' clock, which it trusts once the server's was seen to run
// like it. So for a second after the server's clock was set forward, a denial may be remembered that
// Redis would no longer make.

// simSetting is one time that the clock was set.
type simSetting struct {
	at time.Time
	by time.Duration
}

// drawSetting draws how far a clock is set, and whether it is set right again.
func (f *simFault) drawSetting(r *rand.Rand) {
	f.process = -1
	if f.extra = upTo(r, pick(r, 20*time.Millisecond, 300*time.Millisecond, 3*time.Second)); r.IntN(2) == 0 {
		f.extra = -f.extra
	}
	if r.IntN(2) == 0 {
		f.lasts = 0 // it stays so
	}
}

// setClockLocked sets the server's clock forward, or back if by is negative.
func (v *simServer) setClockLocked(by time.Duration) {
	v.tickLocked()
	before := v.now()
	v.ahead += by
	v.settings = append(v.settings, simSetting{time.Now(), by})
	back := before.Sub(v.now())
	v.note("server: the clock is set from %s to %s", before.Format("15:04:05.000"), v.now().Format("15:04:05.000"))
	for _, n := range v.nodes {
		for _, name := range n.mini.Keys() {
			if ttl := n.mini.TTL(name); ttl > 0 && back > 0 {
				n.mini.SetTTL(name, ttl+back) // miniredis keeps how long a key has to live, not until when
			}
		}
	}
	v.tickLocked()
	if back > 0 {
		v.adoptAllLocked()
	}
}

// adoptAllLocked has the reference go on from what the keys say. What has expired does not come back with the time at
// which it was there, but a block that had ended, and tokens of a window that had left, may.
func (v *simServer) adoptAllLocked() {
	for name, b := range v.names {
		key := v.plan.keys[b.key]
		l := key.versions[v.counted[b.key][b.limit]][b.limit]
		switch {
		case v.foreign[name]:
		case v.plan.algorithm == ginlimit.TokenBucket:
			v.reference.adopt(key.name, l, v.bucketIn(name, l))
		default:
			v.reference.adoptWindow(key.name, l, v.windowIn(name, l))
		}
	}
}

// serverTime is how far the server's clock has gone on at most from one time to another, by running
// and by being set forward.
func (s *simulation) serverTime(from, to time.Time) time.Duration {
	return to.Sub(from) + time.Millisecond + s.setForward(from, to) // it shows whole milliseconds
}

// setForward is how far the server's clock was set forward within a time.
func (s *simulation) setForward(from, to time.Time) (sum time.Duration) {
	for _, set := range s.server.settings {
		if !set.at.Before(from) && !set.at.After(to) {
			sum += max(0, set.by)
		}
	}
	return sum
}

// setBack reports whether the server's clock was set back within a time.
func (s *simulation) setBack(from, to time.Time) bool {
	return slices.ContainsFunc(s.server.settings, func(set simSetting) bool {
		return set.by < 0 && !set.at.Before(from) && !set.at.After(to)
	})
}

// setBetween is how far the server's clock was set forward between two of its decisions, at least.
// The first was made from first to told, the second from again to last.
func (s *simulation) setBetween(first, told, again, last time.Time) (sum time.Duration) {
	for _, set := range s.server.settings {
		switch {
		case set.at.Before(first) || set.at.After(last):
		case set.at.After(told) && set.at.Before(again):
			sum += set.by
		default: // before or after one of them
			sum += min(0, set.by)
		}
	}
	return sum
}

// logStands reports whether the log of a sliding window may stand still at a time, since the
// server's clock was set back and has not caught up (kind/sliding.lua). RetryAfter is by the
// clock of the log.
func (s *simulation) logStands(at time.Time) bool {
	ahead, latest := s.plan.clock, s.start
	for _, set := range s.server.settings {
		if set.at.After(at) {
			break
		}
		if before := set.at.Add(ahead); before.After(latest) {
			latest = before
		}
		ahead += set.by
	}
	return s.plan.algorithm == ginlimit.SlidingWindow && at.Add(ahead).Before(latest)
}
