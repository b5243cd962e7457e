package model

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// slotTrace has real processes, which are [inflight.Counts], and the real scripts on miniredis do a random walk of the
// model in simulated time. Each step is done by both, and then both are in the same state: what a process counts, what
// its calls say, what Redis answers and what it keeps. A process says itself when it reports; that must be a step of
// the model.
type slotTrace struct {
	t       *testing.T
	r       *rand.Rand
	model   *Slots
	state   SlotState
	redis   *testkit.Bubble
	scripts [2]*redis.Script // of an attempt, and of a report
	of      []*slotTraced
	steps   []string
}

// slotTraced is a real process.
type slotTraced struct {
	name     string
	counts   *inflight.Counts
	attempts map[int16]bucket.Attempt // on their way
	held     []int64                  // its slots
	arrives  chan slotTracedReport
	waits    *slotTracedReport // the report that it waits for
	reports  []inflight.Update // on their way
	dead     chan struct{}     // closed when it dies
	granted  map[int16][2]bool // an answer: granted, and others are left
}

type slotTracedReport struct {
	inflight.Update
	reached chan bool
}

const tracedKey = "{k}:slots"

// report is what a process reports, for as long as it lives.
func (p *slotTraced) report(_ context.Context, updates []inflight.Update) []bool {
	report := slotTracedReport{updates[len(updates)-1], make(chan bool)} // the one key may be due, and have changed
	select {
	case p.arrives <- report:
	case <-p.dead:
		return nil
	}
	select {
	case reached := <-report.reached:
		return slices.Repeat([]bool{reached}, len(updates))
	case <-p.dead:
		return nil
	}
}

// TestRealSlotsAreThoseOfTheModel, at each step of random walks.
func TestRealSlotsAreThoseOfTheModel(t *testing.T) {
	walks := uint64(30)
	if testkit.Full() {
		walks = 1000
	}
	for seed := range walks {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
				r := rand.New(rand.NewPCG(seed, 3))
				l := &Slots{Processes: 1 + r.IntN(3), N: int8(1 + r.IntN(3)), Life: 10, Window: 15, Attempts: 2, Reports: 2,
					Flushes: int8(r.IntN(2)), Late: r.IntN(2) == 0}
				w := &slotTrace{t: t, r: r, model: l, state: l.Initial(), redis: b}
				defer func() {
					if t.Failed() {
						t.Logf("seed %d, %+v:\n%s", seed, l, strings.Join(w.steps, "\n"))
					}
				}()
				w.walk(200)
			})
		})
	}
}

func (w *slotTrace) walk(steps int) {
	for i, script := range []int{wire.BanOrSlots, wire.Report} {
		source := testkit.ScriptSource(w.t, script)
		if flags, ok := strings.CutPrefix(source, "#!"); ok { // miniredis knows none
			source = "--" + flags
		}
		w.scripts[i] = redis.NewScript(source)
	}
	for i := range w.model.Processes {
		p := &slotTraced{name: fmt.Sprint("P", i), attempts: map[int16]bucket.Attempt{}, arrives: make(chan slotTracedReport),
			dead: make(chan struct{}), granted: map[int16][2]bool{}}
		p.counts = inflight.New(p.report)
		w.of = append(w.of, p)
		defer p.end()
	}
	w.compare()
	for range steps {
		var all []Step
		var next []SlotState
		w.model.Steps(&w.state, func(step Step, s SlotState) {
			rare := slices.Contains([]string{dies, losesMemory}, step.Format)
			if step.Format != reports && (!rare || w.r.IntN(30) == 0) {
				all, next = append(all, step), append(next, s)
			}
		})
		i := w.r.IntN(len(all))
		w.state = next[i]
		w.steps = append(w.steps, all[i].String())
		w.do(all[i])
		synctest.Wait()
		w.hear(all[i].Format == ticks)
		w.compare()
	}
}

// end has a process do nothing any more.
func (p *slotTraced) end() {
	select {
	case <-p.dead:
	default:
		close(p.dead)
	}
}

// hear wants each report that a process makes to be a step of the model, and one within a tick of a change.
func (w *slotTrace) hear(ticked bool) {
	for i, p := range w.of {
		if p.waits != nil {
			continue
		}
		var report slotTracedReport
		select {
		case report = <-p.arrives:
		default:
			m := &w.state.Of[i]
			attempts := slices.ContainsFunc(m.Attempts[:], func(a slotAttempt) bool { return a.Waits }) // one may report it
			require.False(w.t, ticked && m.Changed && !m.Dead && !attempts, "process %d does not report a change", i)
			continue
		}
		want := step(reports, int16(i), int16(report.Held), int16(report.Ended))
		for len(p.reports) == w.model.Reports { // the model has room for no more
			w.take(step(hasReport, int16(i), int16(p.reports[0].Held), int16(p.reports[0].Ended)))
		}
		w.state = w.find(want)
		p.waits, p.reports = &report, append(p.reports, report.Update)
		for j := range w.state.Of[i].Reports { // a doubt ends when the process looks
			if r := &w.state.Of[i].Reports[j]; r.Stage == sent && r.Waits {
				require.True(w.t, report.Doubt || !r.Doubt, "%s: there is a doubt", want)
				r.Doubt = report.Doubt
			}
		}
	}
}

// take has the model and the code take a step.
func (w *slotTrace) take(s Step) {
	w.state = w.find(s)
	w.do(s)
}

// find returns where a step of the model leads.
func (w *slotTrace) find(want Step) (next SlotState) {
	found := false
	w.model.Steps(&w.state, func(s Step, to SlotState) {
		if s == want {
			found, next = true, to
		}
	})
	require.True(w.t, found, "%q is no step of the model from %s", want, w.model.Describe(&w.state))
	w.steps = append(w.steps, want.String())
	return next
}

// do has the code do what a step says.
func (w *slotTrace) do(s Step) {
	key := []byte("k")
	switch s.Format {
	case ticks:
		time.Sleep(time.Second)
		w.redis.Mini.SetTime(time.Now())
		return
	case losesMemory:
		w.redis.Mini.FlushAll()
		return
	case decides:
		w.decide(w.of[s.Args[1]], s.Args[0])
		return
	}
	p, number := w.of[s.Args[0]], int64(s.Args[1])
	switch s.Format {
	case makesAttempt:
		a := p.counts.Begin(key)
		require.Equal(w.t, number, a.Number)
		p.attempts[int16(number)] = a
	case hasAnswer:
		granted := p.granted[s.Args[1]]
		delete(p.granted, s.Args[1])
		require.Equal(w.t, s.Args[2] == 1, granted[0], "an answer to an attempt")
		outcome := inflight.Denied
		if granted[1] {
			outcome = inflight.Spare
		} else if granted[0] {
			outcome = inflight.Granted
		}
		if p.counts.Answer(key, number, outcome, inflight.News{}, int64(w.model.N)) && granted[0] {
			p.held = append(p.held, number)
		}
	case givesUp:
		p.counts.End(key, number, inflight.Lost)
	case takesItself:
		p.counts.TryAll([]inflight.Try{{Key: key, Number: number, Sent: true}}, func() bool { return true })
		p.held = append(p.held, number)
	case releasesSlotOf, releases:
		i := 0 // the oldest has ended
		if s.Format == releasesSlotOf {
			i = slices.Index(p.held, number)
		}
		p.counts.Release(key, p.held[i])
		p.held = slices.Delete(p.held, i, i+1)
	case dies:
		p.end()
	case hasReport:
		w.decideReport(p, s)
	case reportArrived, givesReportUp:
		p.waits.reached <- s.Format == reportArrived
		p.waits = nil
	}
}

// decide has Redis decide on an attempt, and remembers the answer.
func (w *slotTrace) decide(p *slotTraced, number int16) {
	a := p.attempts[number]
	delete(p.attempts, number)
	reply, err := w.scripts[0].Run(w.t.Context(), w.redis.Redis, []string{tracedKey}, "take", 1, 1, "slots", p.name, 0,
		w.model.N, a.Ended, a.Held, fmt.Sprint(a.Number, ","), 0).Int64Slice()
	require.NoError(w.t, err)
	used := reply[0] % (1 << 21)
	p.granted[number] = [2]bool{used < int64(w.model.N), used+1 < int64(w.model.N)}
}

// decideReport has Redis do a report that is on its way: one of those that say the same.
func (w *slotTrace) decideReport(p *slotTraced, s Step) {
	i := slices.IndexFunc(p.reports, func(u inflight.Update) bool {
		return int16(u.Held) == s.Args[1] && int16(u.Ended) == s.Args[2]
	})
	require.GreaterOrEqual(w.t, i, 0, "%s: it has sent %v", s, p.reports)
	u, doubt := p.reports[i], 0
	if p.reports = slices.Delete(p.reports, i, i+1); u.Doubt {
		doubt = 1
	}
	require.NoError(w.t, w.scripts[1].Run(w.t.Context(), w.redis.Redis, []string{tracedKey}, p.name, u.Ended, u.Held,
		doubt).Err())
}

// compare wants the code to be in the state of the model.
func (w *slotTrace) compare() {
	values := w.redis.Redis.HGetAll(w.t.Context(), tracedKey).Val()
	var all [4]int64 // of the key: when it expires
	_, _ = fmt.Sscan(values["all"], &all[0])
	now := all[0] - w.redis.Mini.TTL(tracedKey).Milliseconds()
	for i, p := range w.of {
		m, what := &w.state.Of[i], fmt.Sprintf("process %d: %s", i, w.model.Describe(&w.state))
		if !m.Dead {
			require.EqualValues(w.t, m.inFlight(), p.counts.Held([]byte("k")), what)
			if a := p.counts.Look([]byte("k")); m.inFlight() > 0 {
				require.Equal(w.t, [2]int64{int64(m.Base) + int64(m.Ended), int64(m.Held)}, [2]int64{a.Ended, a.Held}, what)
			}
		}
		var ended, held, slots, stop int64
		var later string
		_, _ = fmt.Sscan(values[p.name], &ended, &held, &slots, &stop, &later)
		e, want := m.Redis, ""
		numbers := strings.SplitAfter(later, ",")
		slices.SortFunc(numbers, func(a, b string) int { return cmp.Or(len(a)-len(b), cmp.Compare(a, b)) })
		found := fmt.Sprint(ended, held, slots, stop-now, strings.Join(numbers, ""))
		if values[p.name] == "" || stop <= now {
			found = ""
		}
		if e.Known {
			for number := range int16(32) {
				if e.Later&(1<<number) != 0 {
					want += fmt.Sprint(m.Base+number, ",")
				}
			}
			want = fmt.Sprint(int64(m.Base)+int64(e.Ended), int64(e.Held), int64(e.slots()),
				int64(w.model.Life-e.Age)*1000, want)
		}
		require.Equal(w.t, want, found, "what Redis has of %s", what)
	}
	require.Empty(w.t, w.model.Broken(&w.state))
}
