package simulation_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// simServer is the server of a simulation, or the masters of a cluster, which have one clock. It
// has milliseconds, as that of Redis.
//
// It is the simulation's witness too. It reads every script's call, has the reference model do the same, and wants the
// buckets afterwards as the model has them. What it has seen it keeps for the checks at the end.
type simServer struct {
	*simulation
	nodes []*simNode
	names map[string]simBucketName // of the keys in Redis

	mu         sync.Mutex // guards everything below, and the data of the nodes
	slots      *simSlots  // nil if it is one server
	reference  simReference
	executions []*simExecution
	version    []int   // of the limits of each key, that calls are to be made with
	counted    [][]int // of the limits by which the reference has each bucket of each key
	foreign    map[string]bool
	ahead      time.Duration // how far the server's clock is ahead
	settings   []simSetting  // of that clock
}

// filledLocked notes that nobody's call has filled a bucket, or that it has other limits.
func (v *simServer) filledLocked(b simBucketName, verb string) {
	v.executions = append(v.executions, &simExecution{
		at: time.Now(), process: -1, key: b.key, limits: []int{b.limit}, verb: verb,
	})
}

// simBucketName says of what a key in Redis is a bucket.
type simBucketName struct{ key, limit int }

// simExecution is what a script has done to one key.
type simExecution struct {
	at         time.Time
	now        time.Time // by the server's clock
	process    int
	key        int
	version    int
	limits     []int // those of the version that it was about
	verb       string
	n, charges int64
	granted    int64
	single     [][]ginlimit.Result // of charges made one after another, by AllowN
	together   []ginlimit.Result   // of all charges at once, by AllowUpTo
	used       []bool              // single: an answer had this Result
	denied     *simReference       // of its buckets, if it has denied a call
}

func newSimServer(s *simulation) (*simServer, error) {
	v := &simServer{
		simulation: s, names: map[string]simBucketName{}, reference: newSimReference(s.plan.algorithm),
		version: make([]int, len(s.plan.keys)), counted: make([][]int, len(s.plan.keys)),
		foreign: map[string]bool{}, ahead: s.plan.clock,
	}
	for k, key := range s.plan.keys {
		for i := range key.versions[0] { // the others have the same periods
			b := simBucketName{k, i}
			v.names[v.name(b)] = b
		}
		v.counted[k] = make([]int, len(key.versions[0]))
	}
	for i := range s.plan.nodes {
		n, err := newSimNode(v, i)
		if err != nil {
			return nil, err
		}
		v.nodes = append(v.nodes, n)
	}
	if s.plan.nodes > 1 {
		v.slots = newSimSlots(s.plan.nodes)
	}
	return v, nil
}

// now is the server's time, in whole milliseconds.
func (v *simServer) now() time.Time { return time.Now().Add(v.ahead).Truncate(time.Millisecond) }

// name returns the key of a bucket in Redis.
func (v *simServer) name(b simBucketName) string {
	key, l := v.plan.keys[b.key].name, v.plan.keys[b.key].versions[0][b.limit]
	return testkit.Engine{Algorithm: v.plan.algorithm}.RedisKey(key, l)
}

// counted returns a bucket by a version of its limit.
func (v *simServer) countedAs(b simBucketName, version int) simCounted {
	return simCounted{client: v.plan.keys[b.key].name, limit: v.plan.keys[b.key].versions[version][b.limit]}
}

// tickLocked brings the clocks of the server and of the reference up to date.
func (v *simServer) tickLocked() {
	for _, n := range v.nodes {
		n.mini.SetTime(v.now())
	}
	v.reference.at(v.now().UnixMilli())
}

// executeLocked has a node do a script's call, and returns the reply.
func (v *simServer) executeLocked(n *simNode, clientName, command string, args []string) string {
	process, _ := strconv.Atoi(clientName)
	if v.plan.slots || slices.ContainsFunc(declared(args), isOfOperators) {
		return n.do(nil, append([]string{command}, args...)...)
	}
	c, err := v.parse(args)
	if err != nil {
		v.violated("protocol: %v", err)
		return "-ERR\r\n"
	}
	var marks []int64 // when what is given back was taken, by the reference
	for _, k := range c.keys {
		v.recountLocked(k)
		marks = append(marks, v.marked(k, c.marks)...)
	}
	if c.verb == "return" {
		c.used = v.usedIn(c.keys[0])
	}
	reply := n.do(nil, append([]string{command}, args...)...)
	if strings.HasPrefix(reply, "-NOSCRIPT") {
		v.note("server: NOSCRIPT for process %d", process)
		return reply
	}
	found := integers(reply)
	for i, k := range c.keys {
		failed := strings.HasPrefix(reply, "-") || c.verb == "each" && found[i*len(found)/len(c.keys)] == -1
		v.note("server: process %d: %s(%s, n=%d, charges=%d), failed=%t", process, c.verb,
			v.plan.keys[k.key].name, c.n, k.charges, failed)
		hasForeign := slices.ContainsFunc(k.buckets(), func(b simBucketName) bool { return v.foreign[v.name(b)] })
		switch {
		case strings.HasPrefix(reply, "-") && n.noWrites == "" && !hasForeign:
			v.violated("the script fails without a cause: %s", reply)
		case !failed && c.verb == "reset": // it removes whatever is there
			for _, b := range k.buckets() {
				delete(v.foreign, v.name(b))
			}
		case !failed && hasForeign:
			v.violated("the script succeeds on a key of another type: %s", reply)
		}
		switch {
		case !failed:
			v.executions = append(v.executions, v.mirrorLocked(process, c, k, marks))
		case (c.verb == "give" || c.verb == "return") && len(k.limits) > 1:
			v.mirrorPartLocked(process, c, k)
		}
		v.compareLocked(k)
	}
	v.checkKeysLocked()
	return reply
}

// compareLocked wants the buckets of a key in Redis as the reference has them, each with an expiry.
func (v *simServer) compareLocked(k simScriptKey) {
	for _, b := range k.buckets() {
		name, one := v.name(b), v.countedAs(b, k.version)
		if v.checkHomesLocked(name); v.foreign[name] {
			continue
		}
		if mini := v.homeLocked(name).mini; mini.Exists(name) && mini.TTL(name) <= 0 {
			v.violated("%s has no expiry", name)
			continue
		}
		if found, want := v.stored(name, one), v.reference.stored(one); found != want {
			v.violated("guarantee 1, 2: %s under %s holds %s, and by the model %s", name, one.limit, found, want)
		}
	}
}

// recountLocked has the reference count a key by the limits that the script is called with. By other limits a token
// bucket is as long from full as before.
func (v *simServer) recountLocked(k simScriptKey) {
	for _, b := range k.buckets() {
		if v.counted[k.key][b.limit] == k.version {
			continue
		}
		v.counted[k.key][b.limit] = k.version
		one := v.countedAs(b, k.version)
		if name := v.name(b); !v.foreign[name] {
			v.reference.adopt(one.client, one.limit, v.bucketIn(name, one.limit))
		}
	}
}

// countedOf returns the buckets of a key by a version of its limits.
func (v *simServer) countedOf(key, version int) (all []simCounted) {
	for limit := range v.plan.keys[key].versions[version] {
		all = append(all, v.countedAs(simBucketName{key, limit}, version))
	}
	return all
}

// checkKeysLocked wants that the server has no keys but those that are known, each with an expiry.
func (v *simServer) checkKeysLocked() {
	for _, n := range v.nodes {
		for _, name := range n.mini.Keys() {
			if _, known := v.names[strings.TrimSuffix(name, ":back")]; !known && !isOfOperators(name) {
				v.violated("the key %s is none that is documented", name)
			}
			if !v.foreign[name] && !isOfOperators(name) && n.mini.TTL(name) <= 0 {
				v.violated("%s has no expiry", name)
			}
		}
	}
}

// isOfOperators reports whether a key is one of operators.
func isOfOperators(key string) bool {
	return strings.Contains(key, "{policies}") || strings.Contains(key, "{overrides}")
}

// occupyLocked puts a value of another type where the first bucket of a key is.
func (v *simServer) occupyLocked(key int) {
	name := v.name(simBucketName{key, 0})
	mini := v.homeLocked(name).mini
	mini.Del(name)
	v.foreign[name] = true
	if v.plan.algorithm == ginlimit.SlidingWindow {
		_ = mini.Set(name, "text")
	} else {
		_, _ = mini.Push(name, "text")
	}
}

// vacateLocked takes it away. It wants to find it as it was.
func (v *simServer) vacateLocked(key int) {
	for name := range v.foreign { // unless the server was emptied
		b := v.names[name]
		if b.key != key {
			continue
		}
		mini := v.homeLocked(name).mini
		if text, _ := mini.Get(name); text != "text" {
			if list, _ := mini.List(name); !slices.Equal(list, []string{"text"}) {
				v.violated("the value of another type has changed: %q, %q", text, list)
			}
		}
		delete(v.foreign, name)
		mini.Del(name)
		v.reference.reset(v.countedAs(b, v.counted[key][b.limit]))
		v.filledLocked(b, "fill")
	}
}

// close ends the nodes.
func (v *simServer) close() {
	for _, n := range v.nodes {
		n.mini.Close()
	}
}
