package ginlimit_test

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit"
)

// simServer is the server of a simulation, or the masters of a cluster, which have one clock. It has milliseconds, as that of Redis.
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

// simBucketName says of what a key in Redis is a bucket.
type simBucketName struct{ key, limit int }

// simExecution is what a script has done to one key.
type simExecution struct {
	at         time.Time
	process    int
	key        int
	version    int
	limits     []int // those of the version that it was about: all, or one while a slot migrates
	verb       string
	n, charges int64
	granted    int64
	single     []ginlimit.Result // of charges made one after another, if they are those of AllowN
	together   ginlimit.Result   // of all charges at once, if they are those of AllowUpTo
	used       []bool            // single: an answer had this Result
}

func newSimServer(s *simulation) (*simServer, error) {
	v := &simServer{
		simulation: s, names: map[string]simBucketName{}, reference: newSimReference(s.plan.algorithm),
		version: make([]int, len(s.plan.keys)), counted: make([][]int, len(s.plan.keys)), foreign: map[string]bool{}, ahead: s.plan.clock,
	}
	for k, key := range s.plan.keys {
		for i, l := range key.versions[0] { // the others have the same periods
			v.names[v.name(k, l)] = simBucketName{k, i}
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
func (v *simServer) name(key int, l ginlimit.Limit) string {
	return engine{algorithm: v.plan.algorithm}.redisKey(v.plan.keys[key].name, l)
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
	c, err := v.parse(args)
	if err != nil {
		v.violated("protocol: %v", err)
		return "-ERR\r\n"
	}
	process, _ := strconv.Atoi(clientName)
	var marks []int64 // when what is given back was taken, by the reference
	for _, k := range c.keys {
		v.recountLocked(k)
		marks = append(marks, v.marked(k, c.marks)...)
	}
	reply := n.do(nil, append([]string{command}, args...)...)
	if strings.HasPrefix(reply, "-NOSCRIPT") {
		v.note("server: NOSCRIPT for process %d", process)
		return reply
	}
	found := integers(reply)
	for i, k := range c.keys {
		failed := strings.HasPrefix(reply, "-") || c.verb == "each" && found[i*len(found)/len(c.keys)] == -1
		v.note("server: process %d: %s(%s, n=%d, charges=%d), failed=%t", process, c.verb, v.plan.keys[k.key].name, c.n, k.charges, failed)
		limits := v.limitsOf(k.key, k.version, k.limits)
		hasForeign := slices.ContainsFunc(limits, func(l ginlimit.Limit) bool { return v.foreign[v.name(k.key, l)] })
		switch {
		case strings.HasPrefix(reply, "-") && n.noWrites == "" && !hasForeign:
			v.violated("the script fails without a cause: %s", reply)
		case !failed && hasForeign:
			v.violated("the script succeeds on a key of another type: %s", reply)
		}
		switch {
		case !failed:
			v.executions = append(v.executions, v.mirrorLocked(process, c, k, marks))
		case (c.verb == "give" || c.verb == "return") && len(limits) > 1:
			v.mirrorPartLocked(c, k)
		}
		v.compareLocked(k)
	}
	return reply
}

// mirrorLocked has the reference do what the script has done to a key.
func (v *simServer) mirrorLocked(process int, c simScriptCall, k simScriptKey, marks []int64) *simExecution {
	e := &simExecution{at: time.Now(), process: process, key: k.key, version: k.version, limits: k.limits, verb: c.verb, n: c.n, charges: k.charges}
	name, limits := v.plan.keys[k.key].name, v.limitsOf(k.key, k.version, k.limits)
	switch c.verb {
	case "give":
		v.reference.refund(name, c.n, limits)
	case "return":
		for i, l := range limits {
			switch v.plan.algorithm {
			case ginlimit.SlidingWindow:
				v.reference.windows.giveBack(name, marks[i], c.n, l)
			case ginlimit.FixedWindow:
				if v.reference.windows.left(name, l) <= c.marks[i] {
					v.reference.refund(name, c.n, []ginlimit.Limit{l})
				}
			default: // the same as give
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
	for _, l := range v.limitsOf(k.key, k.version, k.limits) {
		if key := v.name(k.key, l); !v.foreign[key] && v.stored(key, l) != v.reference.stored(name, l) {
			v.reference.refund(name, c.n, []ginlimit.Limit{l})
		}
	}
}

// compareLocked wants the buckets of a key in Redis as the reference has them, each with an expiry.
func (v *simServer) compareLocked(k simScriptKey) {
	for _, l := range v.limitsOf(k.key, k.version, k.limits) {
		name := v.name(k.key, l)
		if v.checkHomesLocked(name); v.foreign[name] {
			continue
		}
		if mini := v.homeLocked(name).mini; mini.Exists(name) && mini.TTL(name) <= 0 {
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
	for _, i := range k.limits {
		if v.counted[k.key][i] == k.version {
			continue
		}
		v.counted[k.key][i] = k.version
		l := v.plan.keys[k.key].versions[k.version][i]
		if name := v.name(k.key, l); !v.foreign[name] {
			v.reference.adopt(v.plan.keys[k.key].name, l, v.bucketIn(name, l))
		}
	}
}

// limitsOf returns some limits of a version of a key.
func (v *simServer) limitsOf(key, version int, which []int) (limits []ginlimit.Limit) {
	for _, i := range which {
		limits = append(limits, v.plan.keys[key].versions[version][i])
	}
	return limits
}

// occupyLocked puts a value of another type where the first bucket of a key is.
func (v *simServer) occupyLocked(key int) {
	name := v.name(key, v.plan.keys[key].versions[0][0])
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
	l := v.plan.keys[key].versions[0][0]
	name := v.name(key, l)
	if !v.foreign[name] {
		return // the server was emptied
	}
	mini := v.homeLocked(name).mini
	if text, _ := mini.Get(name); text != "text" {
		if list, _ := mini.List(name); !slices.Equal(list, []string{"text"}) {
			v.violated("the value of another type has changed: %q, %q", text, list)
		}
	}
	delete(v.foreign, name)
	mini.Del(name)
	v.reference.reset(v.plan.keys[key].name, []ginlimit.Limit{l})
}

// close ends the nodes.
func (v *simServer) close() {
	for _, n := range v.nodes {
		n.mini.Close()
	}
}
