package ginlimit_test

import (
	"bufio"
	"bytes"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/ginlimit/ginlimit"
)

// simServer is the server of a simulation: a miniredis without a listener, whose clock has milliseconds, as that of Redis.
//
// It is the simulation's witness too. It reads every script's call, has the reference model do the same, and wants the
// buckets afterwards as the model has them. What it has seen it keeps for the checks at the end.
type simServer struct {
	*simulation
	mini   *miniredis.Miniredis
	server *server.Server
	names  map[string]simBucketName // of the keys in Redis

	mu         sync.Mutex // guards everything below, and the data of the server
	reference  simReference
	executions []*simExecution
	version    []int  // of the limits of each key, that calls are to be made with
	counted    []int  // of the limits by which the reference has each key
	refuses    string // the error with which the server answers every call
	noWrites   string // the error with which it answers writes
	foreign    map[string]bool
	ahead      time.Duration // how far the server's clock is ahead
	settings   []simSetting  // of that clock
}

// simBucketName says of what a key in Redis is a bucket.
type simBucketName struct{ key, limit int }

// simExecution is what a script has done to one key.
type simExecution struct {
	at         time.Time
	process    int
	key        int
	version    int
	verb       string
	n, charges int64
	granted    int64
	single     []ginlimit.Result // of charges made one after another, if they are those of AllowN
	together   ginlimit.Result   // of all charges at once, if they are those of AllowUpTo
	used       []bool            // single: an answer had this Result
}

const simInside = "the simulation itself"

func newSimServer(s *simulation) (*simServer, error) {
	v := &simServer{
		simulation: s, mini: miniredis.NewMiniRedis(), names: map[string]simBucketName{}, reference: newSimReference(s.plan.algorithm),
		version: make([]int, len(s.plan.keys)), counted: make([]int, len(s.plan.keys)), foreign: map[string]bool{}, ahead: s.plan.clock,
	}
	for k, key := range s.plan.keys {
		for i, l := range key.versions[0] { // the others have the same periods
			v.names[v.name(k, l)] = simBucketName{k, i}
		}
	}
	v.mini.ClockTTL(true)
	v.mini.SetTime(v.now())
	conn, err := v.mini.Dial() // has it start without a listener
	if err != nil {
		return nil, err
	}
	_ = conn.Close()
	v.server = v.mini.Server()
	v.server.SetPreHook(v.intercept)
	return v, nil
}

// now is the server's time, in whole milliseconds.
func (v *simServer) now() time.Time { return time.Now().Add(v.ahead).Truncate(time.Millisecond) }

// name returns the key of a bucket in Redis.
func (v *simServer) name(key int, l ginlimit.Limit) string {
	return engine{algorithm: v.plan.algorithm}.redisKey(v.plan.keys[key].name, l)
}

// tickLocked brings the clocks of the server and of the reference up to date.
func (v *simServer) tickLocked() {
	v.mini.SetTime(v.now())
	v.reference.at(v.now().UnixMilli())
}

// intercept sees each command before the server does, and reports whether it was answered. A script's own commands come
// through here too, while its caller has the lock.
func (v *simServer) intercept(peer *server.Peer, command string, args ...string) bool {
	switch command {
	case "SET", "DEL", "PEXPIRE", "INCRBY", "RPUSH", "LSET", "LTRIM":
		frees := slices.Contains([]string{"DEL", "PEXPIRE", "LTRIM"}, command)
		if v.noWrites == "" || frees && strings.HasPrefix(v.noWrites, "OOM") {
			return false
		}
		peer.WriteError(v.noWrites)
		return true
	case "PING", "SCRIPT", "EVAL", "EVALSHA":
		if peer.ClientName == simInside {
			return false
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.tickLocked()
		switch {
		case v.refuses != "":
			peer.WriteError(v.refuses)
		case strings.HasPrefix(command, "EVAL"):
			peer.WriteRaw(v.executeLocked(peer.ClientName, command, args))
		default:
			return false
		}
		return true
	}
	return false
}

// doLocked has the server do a command, and returns its reply.
func (v *simServer) doLocked(args ...string) string {
	var reply bytes.Buffer
	inside := server.NewPeer(bufio.NewWriter(&reply))
	inside.ClientName = simInside
	v.server.Dispatch(inside, args)
	inside.Flush()
	return reply.String()
}

// simScriptCall is the call of a script, as script.lua and window.lua document it.
type simScriptCall struct {
	verb  string
	n     int64
	keys  []simScriptKey
	marks []int64 // of return
}

type simScriptKey struct {
	key, version int
	charges      int64
}

// parse reads a call.
func (v *simServer) parse(args []string) (c simScriptCall, err error) {
	number := func(text string) (n int64) {
		n, e := strconv.ParseInt(text, 10, 64)
		if e != nil {
			err = e
		}
		return n
	}
	count := int(number(args[1]))
	keys, argv := args[2:2+count], args[2+count:]
	c.verb, c.n = argv[0], number(argv[1])
	buckets := func(name string, triples []string) (k simScriptKey) {
		b, ok := v.names[name]
		k.key, k.version = b.key, -1
		for i, version := range v.plan.keys[b.key].versions {
			var want []string
			for _, l := range version {
				for _, n := range scriptArguments(v.plan.algorithm, l) {
					want = append(want, strconv.FormatInt(n, 10))
				}
			}
			if slices.Equal(want, triples) {
				k.version = i
			}
		}
		if !ok || k.version < 0 {
			err = fmt.Errorf("the script is called with key %q and buckets %v", name, triples)
		}
		return k
	}
	if c.verb != "each" {
		k := buckets(keys[0], argv[3:3+3*count])
		k.charges = number(argv[2])
		for i, name := range keys {
			if v.names[name] != (simBucketName{k.key, i}) {
				err = fmt.Errorf("the script is called with keys %v", keys)
			}
		}
		c.keys = []simScriptKey{k}
		for _, mark := range argv[3+3*count:] {
			c.marks = append(c.marks, number(mark))
		}
		return c, err
	}
	for i, name := range keys {
		k := buckets(name, argv[3:6])
		if k.charges = 1; argv[2] != "1" {
			k.charges = number(argv[6+i])
		}
		c.keys = append(c.keys, k)
	}
	return c, err
}

// scriptArguments is how a script is told of a limit.
func scriptArguments(a ginlimit.Algorithm, l ginlimit.Limit) [3]int64 {
	if a != ginlimit.TokenBucket {
		return [3]int64{l.Period.Milliseconds(), 1, int64(l.Rate)}
	}
	p := l.Period.Milliseconds()
	g := new(big.Int).GCD(nil, nil, big.NewInt(int64(l.Rate)), big.NewInt(p)).Int64()
	return [3]int64{int64(l.Rate) / g, p / g, burst(l) * p / g}
}

// executeLocked has the server do a script's call, and returns the reply.
func (v *simServer) executeLocked(clientName, command string, args []string) string {
	c, err := v.parse(args)
	if err != nil {
		v.violated("protocol: %v", err)
		return "-ERR\r\n"
	}
	process, _ := strconv.Atoi(clientName)
	for _, k := range c.keys {
		v.recountLocked(k)
	}
	reply := v.doLocked(append([]string{command}, args...)...)
	if strings.HasPrefix(reply, "-NOSCRIPT") {
		v.note("server: NOSCRIPT for process %d", process)
		return reply
	}
	found := integers(reply)
	for i, k := range c.keys {
		failed := strings.HasPrefix(reply, "-") || c.verb == "each" && found[i*len(found)/len(c.keys)] == -1
		v.note("server: process %d: %s(%s, n=%d, charges=%d), failed=%t", process, c.verb, v.plan.keys[k.key].name, c.n, k.charges, failed)
		limits := v.plan.keys[k.key].versions[k.version]
		hasForeign := slices.ContainsFunc(limits, func(l ginlimit.Limit) bool { return v.foreign[v.name(k.key, l)] })
		switch {
		case strings.HasPrefix(reply, "-") && v.noWrites == "" && !hasForeign:
			v.violated("the script fails without a cause: %s", reply)
		case !failed && hasForeign:
			v.violated("the script succeeds on a key of another type: %s", reply)
		}
		switch {
		case !failed:
			v.executions = append(v.executions, v.mirrorLocked(process, c, k))
		case (c.verb == "give" || c.verb == "return") && len(limits) > 1:
			v.mirrorPartLocked(c, k)
		}
		v.compareLocked(k)
	}
	return reply
}

// mirrorLocked has the reference do what the script has done to a key.
func (v *simServer) mirrorLocked(process int, c simScriptCall, k simScriptKey) *simExecution {
	e := &simExecution{at: time.Now(), process: process, key: k.key, version: k.version, verb: c.verb, n: c.n, charges: k.charges}
	name, limits := v.plan.keys[k.key].name, v.plan.keys[k.key].versions[k.version]
	switch c.verb {
	case "give":
		v.reference.refund(name, c.n, limits)
	case "return":
		for i, l := range limits {
			if v.reference.windows == nil || v.reference.windows.left(name, l) <= c.marks[i] { // of a token bucket the same as give
				v.reference.refund(name, c.n, []ginlimit.Limit{l})
			}
		}
	case "block":
		v.reference.block(name, millis(c.n), limits)
	case "reset":
		v.reference.reset(name, limits)
	default:
		if k.charges == 0 {
			e.single = []ginlimit.Result{v.reference.take(name, 0, c.n, limits)}
		} else if c.n == 1 {
			e.together = v.reference.clone().take(name, k.charges, 1, limits)
		}
		for range k.charges {
			r := v.reference.take(name, c.n, c.n, limits)
			e.single, e.granted = append(e.single, r), e.granted+int64(r.Granted)
		}
		e.verb, e.used = "take", make([]bool, len(e.single))
	}
	return e
}

// mirrorPartLocked has the reference do what is left of a Refund for which miniredis had no memory: deleting the keys of full
// buckets needs none, so it may give back to some buckets and not to others. Redis refuses no write of a script that has
// made one.
func (v *simServer) mirrorPartLocked(c simScriptCall, k simScriptKey) {
	name := v.plan.keys[k.key].name
	for _, l := range v.plan.keys[k.key].versions[k.version] {
		if key := v.name(k.key, l); !v.foreign[key] && v.stored(key, l) != v.reference.stored(name, l) {
			v.reference.refund(name, c.n, []ginlimit.Limit{l})
		}
	}
}

// compareLocked wants the buckets of a key in Redis as the reference has them, each with an expiry.
func (v *simServer) compareLocked(k simScriptKey) {
	for _, l := range v.plan.keys[k.key].versions[k.version] {
		name := v.name(k.key, l)
		if v.foreign[name] {
			continue
		}
		if v.mini.Exists(name) && v.mini.TTL(name) <= 0 {
			v.violated("%s has no expiry", name)
			continue
		}
		found, want := v.stored(name, l), v.reference.stored(v.plan.keys[k.key].name, l)
		if found != want {
			v.violated("guarantee 1, 2: %s under %s holds %s, and by the model %s", name, l, found, want)
		}
	}
}

// recountLocked has the reference count a key by the limits that the script is called with. By other limits a token
// bucket is as long from full as before.
func (v *simServer) recountLocked(k simScriptKey) {
	if v.counted[k.key] == k.version {
		return
	}
	v.counted[k.key] = k.version
	for _, l := range v.plan.keys[k.key].versions[k.version] {
		if name := v.name(k.key, l); !v.foreign[name] {
			v.reference.adopt(v.plan.keys[k.key].name, l, v.bucketIn(name, l))
		}
	}
}

// integers reads a reply of integers.
func integers(reply string) (all []int64) {
	for line := range strings.SplitSeq(reply, "\r\n") {
		if text, ok := strings.CutPrefix(line, ":"); ok {
			n, _ := strconv.ParseInt(text, 10, 64)
			all = append(all, n)
		}
	}
	return all
}

// forgetScriptsLocked is SCRIPT FLUSH.
func (v *simServer) forgetScriptsLocked() { v.doLocked("SCRIPT", "FLUSH") }

// emptyLocked is FLUSHALL. It takes away what stood in the way of keys, too.
func (v *simServer) emptyLocked() {
	v.mini.FlushAll()
	v.reference = newSimReference(v.plan.algorithm)
	clear(v.foreign)
}

// occupyLocked puts a value of another type where the first bucket of a key is.
func (v *simServer) occupyLocked(key int) {
	name := v.name(key, v.plan.keys[key].versions[0][0])
	v.mini.Del(name)
	v.foreign[name] = true
	if v.plan.algorithm == ginlimit.SlidingWindow {
		_ = v.mini.Set(name, "text")
	} else {
		_, _ = v.mini.Push(name, "text")
	}
}

// vacateLocked takes it away. It wants to find it as it was.
func (v *simServer) vacateLocked(key int) {
	l := v.plan.keys[key].versions[0][0]
	name := v.name(key, l)
	if !v.foreign[name] {
		return // the server was emptied
	}
	if text, _ := v.mini.Get(name); text != "text" {
		if list, _ := v.mini.List(name); !slices.Equal(list, []string{"text"}) {
			v.violated("the value of another type has changed: %q, %q", text, list)
		}
	}
	delete(v.foreign, name)
	v.mini.Del(name)
	v.reference.reset(v.plan.keys[key].name, []ginlimit.Limit{l})
}

// close ends the server.
func (v *simServer) close() { v.mini.Close() }
