package frontier

import "time"

// decider decides on the requests of one key, in the order of their times.
type decider interface {
	allow(request) bool
	calls() int // of the store, so far
}

// design is one way to limit in many processes.
type design struct {
	name    string
	promise promise
	source  string // where its authors describe it
	start   func(processes int) decider
}

// designs returns the published ones.
func designs() []design {
	return []design{
		{"two counters of a window", anyWindow, "https://github.com/go-chi/httprate",
			func(int) decider { return &counters{} }},
		{"counters synchronized each 50 ms", eachWindow, "https://github.com/wso2/api-platform/issues/2142",
			func(n int) decider { return newSynced(n, 50*time.Millisecond, fixed) }},
		{"counters synchronized each 200 ms", anyWindow, "https://github.com/apache/apisix/pull/13704",
			func(n int) decider { return newSynced(n, 200*time.Millisecond, weighted) }},
		{"counts sent 50 ms after the decision", anyWindow, "https://github.com/unkeyed/unkey/blob/" +
			"31be2b8dbadf53cdab53e11bc5ed884903721af8/internal/services/ratelimit/MID_WINDOW_BURST.md",
			func(n int) decider { return newReplayed(n, 50*time.Millisecond) }},
		{"tokens handed out for a second", bucket, "https://www.usenix.org/conference/atc22/presentation/elhemali",
			func(n int) decider { return newHanded(n, time.Second) }},
		{"the limit divided by the processes", bucket, "https://tyk.io/docs/api-management/rate-limit",
			func(n int) decider { return newDivided(n) }},
	}
}

// windows are the counts of a window and the one before.
type windows struct {
	number    int64
	now, last float64
}

// moveTo moves to the window of a time.
func (w *windows) moveTo(at time.Duration) {
	n := int64(at / window)
	switch n {
	case w.number:
		return
	case w.number + 1:
		w.last = w.now
	default:
		w.last = 0
	}
	w.number, w.now = n, 0
}

// weighted returns what was counted in the last second, if the window before was even.
func (w *windows) weighted(at time.Duration) float64 {
	return w.now + w.last*(1-float64(at%window)/float64(window))
}

// counters decides by two counters in the store, at each request: only the rule itself may be inexact.
type counters struct {
	windows
	made int
}

func (c *counters) calls() int { return c.made }

func (c *counters) allow(r request) bool {
	c.made++
	c.moveTo(r.at)
	if c.weighted(r.at) >= limit {
		return false
	}
	c.now++
	return true
}

// synced has counters in each process. At an interval a process adds what it has admitted to counters in the store,
// and then admits what those have left.
type synced struct {
	every time.Duration
	rule  syncRule
	store windows
	next  int // synchronizations so far, by all in turns
	all   []struct {
		windows         // what it has admitted and not yet sent is windows.now
		left    float64 // as the store said
	}
}

// syncRule says what the store's counters leave.
type syncRule int

const (
	fixed      syncRule = iota // WSO2: the limit less the window's count; a new window is not asked for
	weighted                   // APISIX: less a part of the window before, too; that stands until the next interval
	unweighted                 // APISIX before its change 13704: as fixed, but it stands until the next interval
)

func newSynced(processes int, every time.Duration, rule syncRule) *synced {
	s := &synced{every: every, rule: rule}
	s.all = append(s.all, make([]struct {
		windows
		left float64
	}, processes)...)
	for i := range s.all {
		s.all[i].left = limit
	}
	return s
}

func (s *synced) calls() int { return s.next }

func (s *synced) allow(r request) bool {
	for { // each process has its own moment in the interval
		at := s.every * time.Duration(s.next) / time.Duration(len(s.all))
		if at > r.at {
			break
		}
		s.synchronize(s.next%len(s.all), at)
		s.next++
	}
	p := &s.all[r.process]
	if n := int64(r.at / window); s.rule == fixed && n != p.number {
		p.number, p.now, p.left = n, 0, limit
	}
	if p.now >= p.left {
		return false
	}
	p.now++
	return true
}

// synchronize sends what a process has admitted.
func (s *synced) synchronize(process int, at time.Duration) {
	p := &s.all[process]
	s.store.moveTo(at)
	if s.rule != fixed || p.number == s.store.number { // else it is the count of an earlier window
		s.store.now += p.now
	}
	p.number, p.now, p.left = s.store.number, 0, limit-s.store.now
	if s.rule == weighted {
		p.left = limit - s.store.weighted(at)
	}
}

// replayed decides in each process by two counters of its own. What it has admitted reaches the store some time
// later, and the process then counts as much as the store.
type replayed struct {
	late  time.Duration
	store windows
	all   []windows
	sent  []request // and not yet in the store
	made  int
}

func newReplayed(processes int, late time.Duration) *replayed {
	return &replayed{late: late, all: make([]windows, processes)}
}

func (p *replayed) calls() int { return p.made }

func (p *replayed) allow(r request) bool {
	for len(p.sent) > 0 && p.sent[0].at+p.late <= r.at {
		sent, own := p.sent[0], &p.all[p.sent[0].process]
		p.sent = p.sent[1:]
		p.made++
		p.store.moveTo(sent.at)
		p.store.now++
		own.moveTo(sent.at + p.late)
		switch own.number {
		case p.store.number:
			own.now, own.last = max(own.now, p.store.now), max(own.last, p.store.last)
		case p.store.number + 1:
			own.last = max(own.last, p.store.now)
		}
	}
	own := &p.all[r.process]
	own.moveTo(r.at)
	if own.weighted(r.at) >= limit {
		return false
	}
	own.now++
	p.sent = append(p.sent, r)
	return true
}

// tokens is a bucket that refills by a rate.
type tokens struct {
	most, have float64
	perSecond  float64
	last       time.Duration
}

// refill brings it to a time.
func (t *tokens) refill(at time.Duration) {
	t.have, t.last = min(t.most, t.have+(at-t.last).Seconds()*t.perSecond), at
}

// handed has a bucket in the store. A process takes the tokens that it needed in the last interval, and uses them in
// the next; what it has not used then is lost. One that runs out asks again, ten times in an interval at most.
type handed struct {
	interval time.Duration
	store    tokens
	made     int
	all      []struct {
		have, used  float64
		began, next time.Duration
	}
}

func newHanded(processes int, interval time.Duration) *handed {
	h := &handed{interval: interval, store: tokens{most: limit, have: limit, perSecond: limit}}
	h.all = append(h.all, make([]struct {
		have, used  float64
		began, next time.Duration
	}, processes)...)
	return h
}

func (h *handed) calls() int { return h.made }

func (h *handed) allow(r request) bool {
	p := &h.all[r.process]
	p.used++
	if over := r.at >= p.began+h.interval; over || p.have < 1 && r.at >= p.next {
		h.made++
		h.store.refill(r.at)
		if over {
			p.have, p.began = 0, r.at
		}
		got := min(h.store.have, max(1, p.used))
		h.store.have -= got
		p.have, p.next = p.have+got, r.at+h.interval/10
		if over {
			p.used = 1
		}
	}
	if p.have < 1 {
		return false
	}
	p.have--
	return true
}

// divided is a bucket in each process, of its part of the limit.
type divided []tokens

func newDivided(processes int) divided {
	part := float64(limit) / float64(processes)
	d := make(divided, processes)
	for i := range d {
		d[i] = tokens{most: part, have: part, perSecond: part}
	}
	return d
}

func (divided) calls() int { return 0 }

func (d divided) allow(r request) bool {
	t := &d[r.process]
	if t.refill(r.at); t.have < 1 {
		return false
	}
	t.have--
	return true
}
