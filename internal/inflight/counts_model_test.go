package inflight

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// knownKey is what Redis knows of this process' slots, as slots.lua keeps it.
type knownKey struct {
	ended, held int64
	granted     []int64
	last        time.Time // report
	slots       bool      // some are known
}

// report makes Redis know the ended attempts and the held slots.
func (k *knownKey) report(ended, held int64) {
	if !k.slots || time.Since(k.last) >= Life {
		*k = knownKey{ended: ended, held: held}
	}
	switch {
	case ended > k.ended:
		k.ended, k.held = ended, held
		k.granted = slices.DeleteFunc(k.granted, func(n int64) bool { return n <= ended })
	case ended == k.ended:
		k.held = min(k.held, held)
	}
	k.last, k.slots = time.Now(), true
}

func (k *knownKey) inUse() int64 {
	if time.Since(k.last) >= Life {
		return 0
	}
	return k.held + int64(len(k.granted))
}

// begun is an attempt that has not ended.
type begun struct {
	bucket.Attempt
	began time.Time
}

// modelKey is the attempts of a key, by their outcome.
type modelKey struct {
	pending []begun
	slots   []int64
	redis   knownKey
	ended   int64     // at least: as of the last attempt
	unsure  int64     // the newest attempt to report to Redis once it has ended
	doubt   time.Time // lasts until then
}

// countsModel makes attempts for a few keys and ends them in every way. Reports arrive or fail.
type countsModel struct {
	t      *testing.T
	c      *Counts
	mu     sync.Mutex // guards the fields below
	r      *rand.Rand
	keys   [3]modelKey
	newest int64
	up     bool
	since  time.Time // it is up
	failed bool      // a report failed, and may have to be sent again
	log    []string
}

// TestCountsEqualTheModel at every step of attempts drawn at random: reports are right, and once
// all is quiet Redis knows each slot and no other.
func TestCountsEqualTheModel(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := &countsModel{t: t, since: time.Now(), r: rand.New(rand.NewPCG(seed, 1)), up: true}
				m.c = New(m.report)
				defer m.c.Close(context.Background())
				for range 300 {
					m.step(t)
				}
				m.endAll(t)
			})
		})
	}
}

func name(i int) []byte { return fmt.Appendf(nil, "k%d", i) }

// report is what the counts report to Redis.
func (m *countsModel) report(_ context.Context, updates []Update) (reached []bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var late []*modelKey
	for _, u := range updates {
		k := &m.keys[u.Key[1]-'0']
		if time.Now().Before(k.doubt) || time.Since(k.doubt) > 2*tick {
			assert.Equal(m.t, time.Now().Before(k.doubt), u.Doubt, "%s, doubt ends in %s", u.Key, time.Until(k.doubt))
		}
		if reached = append(reached, m.up); !m.up {
			late = append(late, k)
		} else {
			k.redis.report(u.Ended, u.Held)
			m.log = append(m.log, fmt.Sprint(u.Key, " ", u.Ended, " ", u.Held))
		}
	}
	m.failed = m.failed || len(late) > 0
	for _, k := range late {
		k.doubt = time.Now().Add(Life)
	}
	return reached
}

// reported returns up to which number all attempts of a key have ended, and how many slots these
// hold.
func (k *modelKey) reported(newest int64) (ended, held int64) {
	ended = newest
	for _, a := range k.pending {
		ended = min(ended, a.Number-1)
	}
	for _, number := range k.slots {
		if number <= ended {
			held++
		}
	}
	return ended, held
}

func (m *countsModel) step(t *testing.T) {
	i := m.r.IntN(len(m.keys))
	k := &m.keys[i]
	m.log = m.log[:0]
	what, quiet, pause, long := m.act(t, i, k)
	if long {
		m.sleep(t, pause)
	} else {
		time.Sleep(pause)
	}
	synctest.Wait()
	m.look(t, what, quiet)
	checkSums(t, m.c)
}

// checkSums checks that what is counted of all keys is the sum of what is counted of each.
func checkSums(t *testing.T, c *Counts) {
	total, lingering := 0, 0
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		for _, r := range s.keys {
			total += r.slots()
			if len(r.pending) == 0 && r.slots() == 0 {
				lingering++
			}
		}
		s.mu.Unlock()
	}
	require.EqualValues(t, lingering, c.lingering.Load())
	require.Equal(t, total, c.Total())
}

// act takes a random action and returns how long to pause. If it is quiet, nothing may be reported.
func (m *countsModel) act(t *testing.T, i int, k *modelKey) (what string, quiet bool, pause time.Duration, long bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch x := m.r.IntN(100); {
	case x < 35 && len(k.pending) < 4:
		a := m.c.Begin(name(i))
		m.newest++
		ended, held := k.reported(m.newest - 1)
		what = fmt.Sprintf("attempt %+v", a)
		require.Equal(t, m.newest, a.Number)
		require.Equal(t, held, a.Held, what)
		require.LessOrEqual(t, a.Ended, ended, what)
		require.GreaterOrEqual(t, a.Ended, k.ended, what)
		for _, number := range k.slots {
			require.False(t, number > a.Ended && number <= ended, "%s: slot %d is ended", what, number)
		}
		k.ended, k.pending, quiet = a.Ended, append(k.pending, begun{a, time.Now()}), true
	case x < 70 && len(k.pending) > 0:
		at := m.r.IntN(len(k.pending))
		what, quiet = m.end(t, i, k.pending[at].Attempt, k.pending[at].began)
		k.pending = slices.Delete(k.pending, at, at+1)
	case x < 88 && len(k.slots) > 0:
		at := m.r.IntN(len(k.slots))
		what = fmt.Sprint("release ", k.slots[at])
		m.c.Release(name(i), k.slots[at])
		if ended, _ := k.reported(m.newest); k.slots[at] > ended {
			k.unsure = max(k.unsure, k.slots[at])
		}
		k.slots = slices.Delete(k.slots, at, at+1)
	case x < 91 || !m.up && time.Since(m.since) > 2*time.Second: // it is back before it forgets
		m.up, m.since = !m.up, time.Now()
	case x < 97:
		pause = time.Duration(m.r.Int64N(int64(2 * time.Second)))
	case !m.up:
	default:
		pause, long = time.Duration(m.r.Int64N(int64(2*Life))), true
	}
	return what, quiet, pause, long
}

// end ends an attempt. Redis learns of it if the call arrived.
func (m *countsModel) end(t *testing.T, i int, a bucket.Attempt, began time.Time) (what string, quiet bool) {
	k := &m.keys[i]
	grant := func() {
		k.redis.report(a.Ended, a.Held)
		if a.Number > k.redis.ended && !slices.Contains(k.redis.granted, a.Number) {
			k.redis.granted = append(k.redis.granted, a.Number)
		}
	}
	ended, _ := k.reported(m.newest)
	quiet = k.unsure <= ended
	up := m.up && time.Since(began) < Life/2 // nobody waits for so long
	came := up && m.r.IntN(2) == 0
	switch m.r.IntN(5) {
	case 0:
		m.c.End(name(i), a.Number, Denied)
		return fmt.Sprint("denied ", a.Number), quiet
	case 1:
		if came {
			grant()
		}
		k.unsure, k.doubt = max(k.unsure, a.Number), time.Now().Add(Life)
		m.c.End(name(i), a.Number, Lost)
		return fmt.Sprint("lost ", a.Number, came), false
	case 2:
		sent, agrees := m.r.IntN(2) == 0, m.r.IntN(2) == 0
		if sent && came {
			grant()
		}
		if sent {
			k.doubt = time.Now().Add(Life)
		}
		held := int64(len(k.slots))
		tryOne(m.c, name(i), a.Number, sent, func(h Holders) bool {
			require.Equal(t, held, h.Own)
			return agrees
		})
		if agrees {
			k.slots = append(k.slots, a.Number)
		}
		if agrees || sent {
			k.unsure = max(k.unsure, a.Number)
		}
		return fmt.Sprint("tried ", a.Number, sent, agrees, came), false
	default:
		if up {
			grant()
			m.c.End(name(i), a.Number, Granted)
		} else {
			m.c.End(name(i), a.Number, Local)
			k.unsure = max(k.unsure, a.Number)
		}
		k.slots = append(k.slots, a.Number)
		return fmt.Sprint("granted ", a.Number, up), quiet && up
	}
}

// sleep lets time pass, in which held slots are renewed.
func (m *countsModel) sleep(t *testing.T, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		m.look(t, "sleep", false)
	}
}

// look compares the counts with the model.
func (m *countsModel) look(t *testing.T, what string, quiet bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	what = fmt.Sprintf("%s, reported %q, up %t", what, m.log, m.up)
	if quiet && m.up && !m.failed {
		require.Empty(t, m.log, what)
	}
	total := 0
	for i := range m.keys {
		k := &m.keys[i]
		total += len(k.slots)
		require.EqualValues(t, len(k.slots), m.c.Held(name(i)), what)
		if a := m.c.Look(name(i)); len(k.slots)+len(k.pending) > 0 {
			ended, held := k.reported(m.newest)
			require.Equal(t, held, a.Held, what)
			require.LessOrEqual(t, a.Ended, ended, what)
			require.GreaterOrEqual(t, a.Ended, k.ended, what)
		}
	}
	require.Equal(t, total, m.c.Total(), what)
	if !m.up || time.Since(m.since) < 3*time.Second {
		return
	}
	pending := 0
	for i := range m.keys {
		k := &m.keys[i]
		pending += len(k.pending)
		if _, held := k.reported(m.newest); len(k.pending) == 0 {
			require.Equal(t, held, k.redis.inUse(), "%s: %+v", what, k)
		} else {
			require.GreaterOrEqual(t, k.redis.inUse(), held, "%s: %+v", what, k)
		}
	}
	m.failed = m.failed && pending > 0
}

// inUse returns how many slots of a key Redis counts.
func (m *countsModel) inUse(i int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keys[i].redis.inUse()
}

// endAll ends all attempts and waits until everything is reported.
func (m *countsModel) endAll(t *testing.T) {
	m.mu.Lock()
	m.up, m.since = true, time.Now()
	m.mu.Unlock()
	m.sleep(t, 2*tick+Renewal)
	for i := range m.keys {
		k := &m.keys[i]
		for _, a := range k.pending {
			m.c.End(name(i), a.Number, Denied)
		}
		k.pending = nil
	}
	synctest.Wait()
	for range 30 {
		m.sleep(t, 500*time.Millisecond)
		for i := range m.keys {
			k := &m.keys[i]
			require.EqualValues(t, len(k.slots), m.inUse(i), "key %d: %+v", i, k)
		}
	}
	for i := range m.keys {
		for _, number := range m.keys[i].slots {
			m.c.Release(name(i), number)
		}
	}
	synctest.Wait()
	for i := range m.keys {
		require.Zero(t, m.inUse(i), "key %d", i)
	}
	time.Sleep(Life + 2*tick)
	require.Zero(t, remembered(m.c))
	require.Zero(t, m.c.lingering.Load())
}
