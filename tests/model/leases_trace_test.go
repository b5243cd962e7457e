package model

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/lease"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// leaseTrace has real processes, which are [lease.Cache], and the real scripts on miniredis do what they like in
// simulated time, a tick of which is a millisecond. All that they do must be a step of the model, which then is in the
// same state: the levels of both buckets, and what each process holds.
type leaseTrace struct {
	t     *testing.T
	r     *rand.Rand
	model *Leases
	state LeaseState
	mini  *testkit.Bubble
	store *redisstore.Store
	set   *rules.Set
	of    []*leaseTraced
	steps []string

	counts map[string]int // of steps
}

// leaseTraced is a real process.
type leaseTraced struct {
	cache  *lease.Cache
	trip   *lease.Trip // in flight
	sent   time.Time
	found  []bucket.State // its answer, if it was done
	back   []leaseTracedReturn
	mu     sync.Mutex // guards unused
	unused []lease.Unused
}

// leaseTracedReturn gives tokens back, and is what the model has of it.
type leaseTracedReturn struct {
	bucket.Op
	leaseReturn
	until time.Time // when it is too late
}

// returnTime is for how long what is given back may be on its way.
const returnTime = 20 * time.Millisecond

// TestRealLeasesAreThoseOfTheModel, at each step of random runs.
func TestRealLeasesAreThoseOfTheModel(t *testing.T) {
	runs := uint64(30)
	if testkit.Full() {
		runs = 1000
	}
	var mu sync.Mutex
	counts := map[string]int{}
	t.Run("seeds", func(t *testing.T) { // until all have ended
		for seed := range runs {
			testkit.RunInBubble(t, fmt.Sprint(seed), func(t *testing.T, b *testkit.Bubble) {
				w := newLeaseTrace(t, b, rand.New(rand.NewPCG(seed, 5)))
				defer func() {
					if t.Failed() {
						t.Logf("seed %d, %+v:\n%s", seed, w.model, strings.Join(w.steps, "\n"))
					}
				}()
				w.run(1000)
				mu.Lock()
				defer mu.Unlock()
				for what, n := range w.counts {
					counts[what] += n
				}
			})
		}
	})
	t.Log(counts)
	require.Len(t, counts, 10, "all that there is happens: %v", counts)
}

func newLeaseTrace(t *testing.T, b *testkit.Bubble, r *rand.Rand) *leaseTrace {
	burst, rate := int64(16<<r.IntN(3)), []int64{10, 40, 100}[r.IntN(3)]
	limit, ok := bucket.New(bucket.Token, "m", rate, burst, 1000)
	require.True(t, ok)
	set := new(rules.Set)
	set.Add(limit)
	require.Equal(t, -1, set.AllowLeases(time.Second))
	all, _ := set.Ahead()
	require.Len(t, all, 2)
	l := &Leases{Processes: 1 + r.IntN(3), B: int16(burst), H: int16(2 * all[1].Burst), Cost: int16(limit.Cost),
		Drain: int16(limit.Drain), Most: 1000, Returns: 30_000, Failovers: 30_000}
	l.Lost = l.d() - int16(set.Life/time.Millisecond)
	require.Positive(t, l.Lost, "its clock may be slower")
	require.EqualValues(t, all[0].Capacity, l.capacity(), "what the limit is decided by")
	w := &leaseTrace{t: t, r: r, model: l, state: l.Initial(), mini: b, set: set, counts: map[string]int{}}
	w.store = redisstore.New(b.Redis, redisstore.Config{Prefix: "test", Timeout: time.Minute, Process: "P",
		Scripts: testkit.Scripts(t), Log: slog.New(slog.DiscardHandler)})
	for range l.Processes {
		w.of = append(w.of, newLeaseTraced())
	}
	t.Cleanup(w.store.Close)
	return w
}

func newLeaseTraced() *leaseTraced {
	p := new(leaseTraced)
	p.cache = lease.New(func(u lease.Unused) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unused = append(p.unused, u)
	})
	return p
}

func (w *leaseTrace) subject() lease.Subject {
	all, _ := w.set.Ahead()
	return lease.Subject{Key: []byte("k"), Hash: 7, Buckets: w.set.Buckets(rules.Limits), Ahead: &all[1]}
}

// run has the processes do what they like.
func (w *leaseTrace) run(steps int) {
	pause := int(w.model.Cost/w.model.Drain) * (1 + w.r.IntN(16)) // so that they want less than the limit, or more
	for range steps {
		i := w.r.IntN(len(w.of))
		p := w.of[i]
		switch x := w.r.IntN(100); {
		case x < 55:
			w.admit(i, p)
		case x < 70 && p.trip != nil:
			w.answer(i, p)
		case x < 72 && p.trip != nil:
			w.take(step(isLost, int16(i)))
			p.lose()
		case x < 80 && len(p.back) > 0:
			w.giveBack(i, p)
		case x == 80:
			w.replace(i, p)
		case x == 81 && w.r.IntN(5) == 0:
			w.mini.Mini.FlushAll()
			w.take(step(failsOver))
		default:
			if w.sleep(1 + w.r.IntN(3)); w.r.IntN(4) == 0 {
				w.sleep(1 + w.r.IntN(pause))
			}
		}
		synctest.Wait()
		for i, p := range w.of {
			w.collect(i, p)
			m, want := &w.state.Of[i], int16(0)
			if m.Last.Age < w.model.used() {
				want = m.Left
			}
			require.EqualValues(w.t, want, p.cache.Usable(w.subject()), "process %d: %s", i, w.model.Describe(&w.state))
			if m.Call.Stage == idle { // it is too late for an answer
				p.lose()
			}
		}
		require.Empty(w.t, w.model.Broken(&w.state))
	}
}

// replace has another process start, as one dies or closes.
func (w *leaseTrace) replace(i int, p *leaseTraced) {
	other := newLeaseTraced()
	if w.r.IntN(2) == 0 {
		p.lose()
		p.unused = append(p.unused, p.cache.Drain()...)
		w.collect(i, p)
		other.back = p.back
	}
	if w.state.Of[i] != (leaseProcess{Steady: w.model.d()}) {
		w.take(step(isReplaced, int16(i)))
	}
	w.of[i] = other
}

// lose has a process wait no more for its call.
func (p *leaseTraced) lose() {
	if p.trip != nil {
		p.trip.Fail(dispatch.ErrLate)
		p.trip, p.found = nil, nil
	}
}

// sleep lets time pass.
func (w *leaseTrace) sleep(ms int) {
	time.Sleep(time.Duration(ms) * time.Millisecond)
	w.mini.Mini.SetTime(time.Now().Truncate(time.Millisecond))
	for range ms {
		w.state = w.find(step(ticksFor, 0))
		for _, p := range w.of {
			for j := range p.back {
				p.back[j].Of.Age++
				p.back[j].Of.Answered++
			}
		}
	}
	w.steps = append(w.steps, fmt.Sprint(ms, " ticks: ", w.model.Describe(&w.state)))
}

// take has the model take a step.
func (w *leaseTrace) take(s Step) {
	w.state = w.find(s)
	w.counts[s.Format]++
	w.steps = append(w.steps, s.String()+": "+w.model.Describe(&w.state))
}

// find returns where a step of the model leads.
func (w *leaseTrace) find(want Step) (next LeaseState) {
	found := false
	visit := func(s Step, to LeaseState) {
		if !found && s == want {
			found, next = true, to
		}
	}
	if want.Format == ticksFor { // the clocks do not differ here
		next = w.state
		w.model.tick(&next, 0)
		return next
	}
	w.model.Steps(&w.state, visit)
	require.True(w.t, found, "%q is no step of the model from %s", want, w.model.Describe(&w.state))
	return next
}

// admit is a request: of a lease, or else of Redis, which may take tokens ahead.
func (w *leaseTrace) admit(i int, p *leaseTraced) {
	states := make([]bucket.State, 2)
	if taken, left := p.cache.Take(w.subject(), 1, 1, false, states[:1]); taken == 1 {
		w.take(step(leaseAdmits, int16(i)))
		require.EqualValues(w.t, w.state.Of[i].Left, left, "process %d has used a token", i)
		return
	}
	trip := p.cache.Begin(w.subject(), w.set.Life, 1, 1)
	switch {
	case trip.Other() != nil:
	case trip.TakesAhead():
		p.trip, p.sent = &trip, time.Now()
		w.take(step(asks, int16(i), int16(trip.Op().Held)))
	default:
		sent := time.Now()
		found := w.do(trip.Op(), w.set.Buckets(rules.Limits))
		w.admitted()
		trip.End(w.subject(), found, sent, time.Now())
	}
}

// admitted has the model take a token of the limit, if there is one.
func (w *leaseTrace) admitted() {
	if r := w.state.Redis; r.take(w.model, 1) == 1 {
		w.take(step(redisAdmits))
	}
}

// do has Redis do a call on the limit, and on the lease bucket if that is among the buckets, and wants the levels found
// to be the model's.
func (w *leaseTrace) do(op bucket.Op, buckets []bucket.Bucket) []bucket.State {
	c := dispatch.NewCall()
	c.Set(op, buckets, bucket.NewLayout(buckets))
	s := w.subject()
	c.Key, c.Hash = s.Key, s.Hash
	require.NoError(w.t, w.store.Do(w.t.Context(), c))
	if op.Verb == bucket.Take {
		levels := []int16{w.state.Redis.Level, w.state.Redis.Ahead}
		for i := range c.States {
			require.EqualValues(w.t, levels[i], c.States[i].Level, "bucket %d: %s", i, w.model.Describe(&w.state))
		}
	}
	return c.States
}

// answer has Redis decide on the call in flight, and then the process have the answer.
func (w *leaseTrace) answer(i int, p *leaseTraced) {
	if p.found == nil {
		op := p.trip.Op()
		all, _ := w.set.Ahead()
		p.found = w.do(op, all)
		w.admitted()
		w.take(step(takesAhead, int16(op.Ahead), int16(i)))
		return
	}
	w.state.Of[i].Back = [2]leaseReturn{}
	p.trip.End(w.subject(), p.found, p.sent, time.Now())
	p.trip, p.found = nil, nil
	w.take(step(isAnswered, int16(i)))
	w.collect(i, p)
}

// collect takes what a process gives back, and finds what the model has of it: of its last answer, or of a lease that
// it ends.
func (w *leaseTrace) collect(i int, p *leaseTraced) {
	p.mu.Lock()
	defer p.mu.Unlock()
	find := func(tokens int64) (b leaseReturn, found bool) {
		back := &w.state.Of[i].Back
		j := slices.IndexFunc(back[:], func(b leaseReturn) bool { return int64(b.Tokens) == tokens })
		if j >= 0 {
			b, back[j] = back[j], leaseReturn{}
		}
		return b, j >= 0
	}
	for _, u := range p.unused {
		b, found := find(u.Tokens)
		if !found && w.state.Of[i].Left > 0 {
			w.take(step(endsLease, int16(i)))
			b, found = find(u.Tokens)
		}
		if !found { // the model knows that nothing is left
			b = leaseReturn{int16(u.Tokens), charged{Age: 10_000}}
		}
		p.back = append(p.back, leaseTracedReturn{u.Op(returnTime), b, time.Now().Add(returnTime)})
	}
	p.unused = nil
	w.state.Of[i].Back = [2]leaseReturn{}
}

// giveBack has Redis have tokens back, no more than by the model. It may be less.
func (w *leaseTrace) giveBack(i int, p *leaseTraced) {
	back := p.back[0]
	p.back = slices.Delete(p.back, 0, 1)
	if time.Now().After(back.until) || back.Claims[0].Gone() {
		return
	}
	w.counts[hasBack]++
	before := w.state.Redis.Level
	after := int16(w.do(back.Op, w.set.Buckets(rules.Limits))[0].Level)
	w.state.Redis.giveBack(w.model, back.leaseReturn)
	w.steps = append(w.steps, fmt.Sprintf("process %d gives %d tokens back: level %d, of the model %d",
		i, back.leaseReturn.Tokens, after, w.state.Redis.Level))
	differ := 3*w.model.Drain + w.model.Cost/100 // of clocks: see decide.lua
	require.GreaterOrEqual(w.t, after, w.state.Redis.Level-differ, "process %d gives %+v back of %d", i, back, before)
	w.state.Redis.Level = after
}
