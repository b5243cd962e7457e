package ginlimit

// ask is one thing that a store is to do with the buckets of a key.
type ask struct {
	op      askOp
	key     []byte // fit for a slot tag
	buckets []bucket
	charges int64   // to decide: above 0 take as many as fit, 0 look, below 0 give back
	n       int64   // tokens of a charge
	levels  []int64 // to decide: found; to block: to raise the buckets to

	names []string // the buckets' keys in Redis
	text  string   // the key, as it stands in names

	// What the dispatcher keeps of it.
	done  chan struct{}
	err   error
	next  *ask
	state askState
	lost  bool // the caller left before it was answered, so it is not used again
}

// askOp is what is to be done.
type askOp uint8

const (
	opDecide askOp = iota
	opBlock        // raise the buckets, none of them falls
	opReset        // fill the buckets up
)

// ask returns an ask about one token for the rules' buckets, without a key yet.
func (l *Limiter) ask(op askOp, r *rules) *ask {
	a, ok := l.asks.Get().(*ask)
	if !ok {
		a = &ask{done: make(chan struct{}, 1), names: make([]string, 1), levels: make([]int64, 1)}
	}
	a.op, a.buckets, a.charges, a.n = op, r.buckets, 0, 1
	a.key, a.state = a.key[:0], askQueued
	if n := len(r.buckets); n <= cap(a.levels) {
		a.levels, a.names = a.levels[:n], a.names[:n]
	} else {
		a.levels, a.names = make([]int64, n), make([]string, n)
	}
	return a
}

// release gives an ask back for another use.
func (l *Limiter) release(a *ask) {
	if !a.lost {
		l.asks.Put(a)
	}
}

// sameLimits reports whether two lists of buckets are of the same limits.
func sameLimits(a, b []bucket) bool {
	if len(a) != len(b) {
		return false
	}
	if &a[0] == &b[0] { // of one handler
		return true
	}
	for i := range a {
		if a[i].limit != b[i].limit {
			return false
		}
	}
	return true
}
