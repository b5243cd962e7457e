package integration

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Histories of requests in flight at two levels, a key and its user, are linearizable on one server. The
// model is how many slots Redis counts for each key and each user:
//
//   - A request that is served takes a slot of its key and one of its user at one moment, at which both
//     have one. It does so before its handler begins.
//   - A denied request takes nothing. At one moment the level that denies it is full.
//   - The slots of a request are free when Redis knows that it has ended. Redis learns this of each level
//     alone, at any moment after the handler's end, but before an observer finds all slots free.
//   - A request without an answer may take slots and free them, at any moments after its beginning.
//
// So no level ever has more requests than slots, and a denial is right if slots count until Redis knows
// that they are released. Callers make their requests in rounds. After each round the observer waits
// until all slots are free, so no slot that leaks explains a later denial.

const (
	slotKeys, slotUsers   = 3, 2 // of each group of callers
	slotsOfKey            = 2
	slotsOfUser           = 3
	slotGroups            = 3
	slotCallers           = 2 // of each group in each process
	slotRequests          = 2 // of a caller in a round
	slotRounds            = 5 // with the same keys and users
	levelHistoryTime      = time.Second
	levelHistoryDecisions = 100
)

type slotVerb uint8

const (
	takeSlots slotVerb = iota
	endRequest
	lookAtSlots
)

// slotCall is what is done to the slots of a key and a user, or of one client alone.
type slotCall struct {
	part  string // of the history, with keys and users of its own
	verb  slotVerb
	at    int    // the client's index in the state
	takes [2]int // slots of the key and of the user
}

// slotAnswer is what became of a request.
type slotAnswer struct {
	granted bool
	lost    bool // there was no answer
	full    int  // the index of who denies
}

// slotsTaken is the state of the model, for each key, then for each user.
type slotsTaken [slotKeys + slotUsers]struct {
	held  int8 // slots of requests that are being served
	ended int8 // the most slots that Redis may count of requests that have ended
	stray int8 // the most slots of requests without an answer
}

// slots returns how many slots a client has.
func (slotsTaken) slots(at int) int8 {
	if at < slotKeys {
		return slotsOfKey
	}
	return slotsOfUser
}

// take takes a slot of a client, if there may be one. If only requests that have ended were in the way,
// Redis knows that they have.
func (s *slotsTaken) take(at int) bool {
	c, room := &s[at], s.slots(at)-1-s[at].held
	c.held, c.ended = c.held+1, min(c.ended, room)
	return room >= 0
}

// slotsAtTwoLevels is the model.
var slotsAtTwoLevels = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		index := map[string]int{}
		for _, o := range history {
			part := o.Input.(slotCall).part
			i, ok := index[part]
			if !ok {
				i = len(parts)
				index[part], parts = i, append(parts, nil)
			}
			parts[i] = append(parts[i], o)
		}
		return parts
	},
	Init: func() any { return slotsTaken{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(slotsTaken), input.(slotCall), output.(slotAnswer)
		key, user := in.takes[0], in.takes[1]
		switch {
		case in.verb == endRequest:
			for _, at := range in.takes {
				s[at].held--
				s[at].ended++
			}
			return true, s
		case in.verb == lookAtSlots:
			free := s[in.at].held == 0
			s[in.at].ended = 0
			return free, s
		case out.lost:
			s[key].stray++
			s[user].stray++
			return true, s
		case out.granted:
			ok := s.take(key) && s.take(user)
			return ok, s
		}
		c := s[out.full]
		return c.held+c.ended+c.stray >= s.slots(out.full), s
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
}

// slotHistory is what the callers of several processes have done and seen.
type slotHistory struct {
	*history
	routers   []*gin.Engine       // of the processes
	observers [2]*ginlimit.Policy // of keys and of users
	start     time.Time

	granted, lost atomic.Int64
	denied        [2]atomic.Int64 // by keys and by users
}

// slotNames are the names of the two levels, and of their limits in denials.
var slotNames = [2]string{"key", "user"}

// newSlotHistory starts a server and processes. Patient ones wait for its answer on a busy machine.
func newSlotHistory(t *testing.T, direct, patient bool) *slotHistory {
	var opts []ginlimit.LimiterOption
	if patient {
		opts = append(opts, testkit.Patient())
	}
	h := &slotHistory{history: newHistory(t, direct, opts...)}
	if patient {
		h.read = time.Minute
	}
	for range processes {
		router := gin.New()
		limiter := h.history.start()
		denied := ginlimit.WithDeniedHandler(func(c *gin.Context, r ginlimit.Result) {
			c.String(http.StatusTooManyRequests, r.Name)
		})
		router.GET("/", ginlimit.AllOf(
			limiter.Must(slotNames[0], testkit.Key("X-Key"), ginlimit.InFlight(slotsOfKey), denied),
			limiter.Must(slotNames[1], testkit.Key("X-User"), ginlimit.InFlight(slotsOfUser), denied),
		), func(c *gin.Context) { c.Request.Context().Value(h).(func())() })
		h.routers = append(h.routers, router)
	}
	limiter := testkit.NewLimiter(t, testkit.Connect(t, h.addr))
	for i, n := range []int{slotsOfKey, slotsOfUser} {
		h.observers[i] = testkit.NewPolicy(t, limiter, slotNames[i], ginlimit.InFlight(n))
	}
	return h
}

// now is the time in the history.
func (h *slotHistory) now() int64 { return time.Since(h.start).Nanoseconds() }

// client returns the key of a client by its index in the state.
func (c slotCall) client(at int) string { return fmt.Sprintf("%s, %d", c.part, at) }

// request makes a request, and returns what became of it.
func (h *slotHistory) request(
	t *testing.T, router *gin.Engine, in slotCall, serve time.Duration,
) []porcupine.Operation {
	called, began, ended := h.now(), int64(0), int64(0)
	ctx := context.WithValue(context.Background(), h, func() {
		began = h.now()
		pause(serve)
		ended = h.now()
	})
	rec := testkit.Get(router, "/", testkit.With("X-Key", in.client(in.takes[0])),
		testkit.With("X-User", in.client(in.takes[1])), func(r *http.Request) { *r = *r.WithContext(ctx) })
	made := []porcupine.Operation{{Input: in, Call: called, Return: h.now()}}
	var out slotAnswer
	switch rec.Code {
	case http.StatusOK:
		out.granted = true
		made[0].Return = began
		in.verb = endRequest
		// What is left to happen at its end is when Redis knows of it.
		made = append(made, porcupine.Operation{Input: in, Output: slotAnswer{}, Call: ended, Return: ended + 1})
		h.granted.Add(1)
	case http.StatusTooManyRequests:
		level := slices.Index(slotNames[:], strings.TrimSuffix(rec.Body.String(), "-c"))
		if !assert.GreaterOrEqual(t, level, 0, rec.Body) {
			return nil
		}
		out.full = in.takes[level]
		h.denied[level].Add(1)
	default:
		assert.Equal(t, http.StatusServiceUnavailable, rec.Code)
		out.lost = true
		made[0].Return = called + 1 // from then on it may have taken slots
		h.lost.Add(1)
		pause(rand.N(20 * time.Millisecond))
	}
	made[0].Output = out
	return made
}

// round has callers of each process make requests, and waits until all slots are free. It returns how
// many requests have no answer.
func (h *slotHistory) round(t *testing.T, part string) (lost int) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var operations []porcupine.Operation
	for i := range len(h.routers) * slotCallers {
		all.Go(func() {
			for range slotRequests {
				// Most requests are of one user, so that now the key denies and now the user.
				in := slotCall{part: part, takes: [2]int{rand.IntN(slotKeys), slotKeys + rand.IntN(4)/3}}
				made := h.request(t, h.routers[i%len(h.routers)], in, rand.N(2*time.Millisecond))
				mu.Lock()
				operations = append(operations, made...)
				if len(made) > 0 && made[0].Output.(slotAnswer).lost {
					lost++
				}
				stop := lost >= lostPerKey
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	all.Wait()
	for at := range slotKeys + slotUsers {
		in := slotCall{part: part, verb: lookAtSlots, at: at}
		look := porcupine.Operation{Input: in, Output: slotAnswer{}}
		observer := h.observers[min(at/slotKeys, 1)]
		if !assert.True(t, testkit.BecomesTrue(t.Context().Done(), func() bool {
			look.Call = h.now()
			results, err := observer.Status(t.Context(), in.client(at))
			look.Return = h.now()
			return err == nil && results[0].Remaining == results[0].Limit.InFlight
		}), "a slot of %s is not released", in.client(at)) {
			return lostPerKey
		}
		operations = append(operations, look)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, operations...)
	return lost
}

// record has groups of callers make requests for a while, each group with keys and users of its own.
func (h *slotHistory) record(t *testing.T, disturb disturbance) {
	h.start = time.Now()
	goesOn := func() bool { // on a busy machine, until there is enough to check
		passed := time.Since(h.start)
		return passed < levelHistoryTime || !h.enough() && passed < 20*levelHistoryTime
	}
	var all sync.WaitGroup
	for group := range slotGroups {
		all.Go(func() {
			// Keys change after some rounds and as calls are lost, so each has few calls without an answer.
			for part := 0; goesOn(); part++ {
				for round, lost := 0, 0; round < slotRounds && lost < lostPerKey; round++ {
					lost += h.round(t, fmt.Sprintf("%d, %d", group, part))
				}
			}
		})
	}
	for time.Since(h.start) < levelHistoryTime-200*time.Millisecond {
		disturb(t, h.addr, h.server, h.proxy)
		pause(50 * time.Millisecond)
	}
	h.proxy.Delay.Store(0)
	all.Wait()
	say(t, "%d requests are served, keys deny %d, users %d, %d have no answer",
		h.granted.Load(), h.denied[0].Load(), h.denied[1].Load(), h.lost.Load())
}

// enough reports whether there is enough to check.
func (h *slotHistory) enough() bool {
	keys, users := h.denied[0].Load(), h.denied[1].Load()
	return h.granted.Load()+keys+users >= levelHistoryDecisions && keys > 0 && users > 0
}

// check requires that the model explains what was seen, and that this is enough.
func (h *slotHistory) check(t *testing.T) {
	t.Helper()
	model := slotsAtTwoLevels
	for _, part := range model.Partition(h.operations) {
		result := porcupine.CheckOperationsTimeout(model, part, time.Minute)
		if result != porcupine.Ok {
			slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
			for _, o := range part {
				t.Logf("%d to %d µs: %s", o.Call/1000, o.Return/1000, model.DescribeOperation(o.Input, o.Output))
			}
		}
		require.Equal(t, porcupine.Ok, result)
	}
	require.True(t, h.enough(), "there is too little to check")
}

func TestConcurrentRequestsAtTwoLevelsAreLinearizable(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		disturb disturbance
		answers bool // to every call
	}{
		"undisturbed":       {undisturbed, true},
		"connections cut":   {cutConnections, false},
		"scripts flushed":   {flushScripts, true},
		"slow Redis":        {delayReplies, false},
		"frozen Redis":      {freezeServer, false},
		"replies swallowed": {swallowReplies, false},
	} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, ContextTimeoutEnabled %t", name, direct), func(t *testing.T) {
				t.Parallel()
				h := newSlotHistory(t, direct, row.answers)
				h.record(t, row.disturb)
				if row.answers {
					require.Zero(t, h.lost.Load())
				}
				h.check(t)
			})
		}
	}
}
