// Command process counts in a process of its own: it reads commands as lines of JSON and answers
// each by a line. Its argument is the address of Redis. The tag before_rewrite builds it with the
// library of the commit before the rewrite.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/integration/sidebyside"
)

func main() {
	gin.SetMode(gin.ReleaseMode)
	s := server{
		rdb:      redis.NewClient(&redis.Options{Addr: os.Args[1]}),
		limiters: map[limiterOptions]*ginlimit.Limiter{},
		policies: map[string]*ginlimit.Policy{},
		reserved: map[string]*ginlimit.Reservation{},
		slots:    map[string]*ginlimit.Slot{},
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var c sidebyside.Command
		err := in.Decode(&c)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		r, err := s.do(context.Background(), c)
		if err != nil {
			r.Error = err.Error()
		}
		if err := out.Encode(r); err != nil {
			log.Fatal(err)
		}
	}
}

// timeout is how long a machine may be busy.
const timeout = 10 * time.Second

// limiterOptions is what limiters differ in.
type limiterOptions struct {
	prefix, secret string
	algorithm      ginlimit.Algorithm
	trustsClock    bool
}

type server struct {
	rdb      *redis.Client
	limiters map[limiterOptions]*ginlimit.Limiter
	policies map[string]*ginlimit.Policy // by what they are in JSON
	reserved map[string]*ginlimit.Reservation
	slots    map[string]*ginlimit.Slot
	plans    *ginlimit.Plans
	plan     atomic.Pointer[[]ginlimit.Limit] // what the source of the plans says
}

// limiter returns the limiter of a policy. It has Redis decide, whatever the machine is busy with.
func (s *server) limiter(p sidebyside.Policy) (*ginlimit.Limiter, error) {
	o := limiterOptions{p.Prefix, p.Secret, p.Algorithm, p.Lease > 0}
	if l := s.limiters[o]; l != nil {
		return l, nil
	}
	l, err := newLimiter(s.rdb, p)
	s.limiters[o] = l
	return l, err
}

// policy returns a policy.
func (s *server) policy(p sidebyside.Policy) (*ginlimit.Policy, error) {
	text, err := json.Marshal(p)
	if err != nil || s.policies[string(text)] != nil {
		return s.policies[string(text)], err
	}
	l, err := s.limiter(p)
	if err != nil {
		return nil, err
	}
	made, err := newPolicy(l, p)
	s.policies[string(text)] = made
	return made, err
}

func (s *server) do(ctx context.Context, c sidebyside.Command) (r sidebyside.Reply, err error) {
	switch c.Op {
	case "Settle":
		return r, s.reserved[c.ID].Settle(ctx, c.N)
	case "Release":
		s.slots[c.ID].Release()
		return r, nil
	case "Plan", "Invalidate":
		return s.doPlan(ctx, c)
	case "Close":
		for _, l := range s.limiters {
			err = errors.Join(err, l.Close())
		}
		return r, err
	}
	on, err := s.policy(c.Policy)
	if err != nil {
		return r, err
	}
	var result ginlimit.Result
	switch c.Op {
	case "Request":
		return request(on, c.Key), nil
	case "HoldSlots":
		return s.holdSlots(ctx, on, c)
	case "Load":
		return load(ctx, on, c)
	case "TakeAndSettle":
		return takeAndSettle(ctx, on, c)
	case "Acquire":
		s.slots[c.ID], err = on.Acquire(ctx, c.Key)
		result = s.slots[c.ID].Result()
	case "AllowN":
		result, err = on.AllowN(ctx, c.Key, c.N)
	case "AllowUpTo":
		result, err = on.AllowUpTo(ctx, c.Key, c.N)
	case "Peek":
		result, err = on.Peek(ctx, c.Key)
	case "Refund":
		err = on.Refund(ctx, c.Key, c.N)
	case "Block":
		err = on.Block(ctx, c.Key, c.D)
	case "Reset":
		err = on.Reset(ctx, c.Key)
	case "Reserve":
		s.reserved[c.ID], err = on.Reserve(ctx, c.Key, c.N)
		result = s.reserved[c.ID].Result()
	default:
		err = fmt.Errorf("unknown operation %q", c.Op)
	}
	r.Result = sidebyside.ResultOf(result)
	return r, err
}

// request makes an HTTP request from an address.
func request(p *ginlimit.Policy, address string) sidebyside.Reply {
	router := gin.New()
	if err := router.SetTrustedProxies(nil); err != nil {
		log.Fatal(err)
	}
	router.GET("/", p.Handler(), func(c *gin.Context) { c.Status(http.StatusOK) })
	rec, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
	req.RemoteAddr = address + ":1234"
	router.ServeHTTP(rec, req)
	return sidebyside.Reply{Status: rec.Code, Header: rec.Header(), Body: rec.Body.String()}
}

// doPlan looks a client's limits up, or invalidates them. The source says the command's limits.
func (s *server) doPlan(ctx context.Context, c sidebyside.Command) (r sidebyside.Reply, err error) {
	s.plan.Store(&c.Policy.Limits)
	if s.plans == nil {
		source := func(context.Context, string) ([]ginlimit.Limit, error) { return *s.plan.Load(), nil }
		if s.plans, err = newPlans(s.rdb, "plans", time.Hour, source); err != nil {
			return r, err
		}
	}
	if c.Op == "Invalidate" {
		return r, s.plans.Invalidate(ctx, c.Key)
	}
	r.Limits, err = s.plans.Limits(ctx, c.Key)
	return r, err
}

// together has callers do the same at once, and joins what came of it.
func together(c sidebyside.Command, call func(random *rand.Rand) (sidebyside.Reply, error)) (sidebyside.Reply, error) {
	var all sync.WaitGroup
	replies, errs := make([]sidebyside.Reply, c.Callers), make([]error, c.Callers)
	for i := range c.Callers {
		all.Go(func() { replies[i], errs[i] = call(rand.New(rand.NewPCG(c.Seed, uint64(i)))) })
	}
	all.Wait()
	var sum sidebyside.Reply
	for _, r := range replies {
		sum.Calls += r.Calls
		sum.Leased += r.Leased
		sum.Net += r.Net
		sum.Most = max(sum.Most, r.Most)
		sum.Admissions = slices.Concat(sum.Admissions, r.Admissions)
	}
	return sum, errors.Join(errs...)
}

// load takes tokens for a time, one after each tick of N microseconds.
func load(ctx context.Context, on *ginlimit.Policy, c sidebyside.Command) (sidebyside.Reply, error) {
	var file *os.File
	if c.Log != "" {
		var err error
		if file, err = os.OpenFile(c.Log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return sidebyside.Reply{}, err
		}
		defer file.Close()
	}
	return together(c, func(*rand.Rand) (r sidebyside.Reply, err error) {
		ticker := time.NewTicker(time.Duration(c.N) * time.Microsecond)
		defer ticker.Stop()
		for end := time.Now().Add(c.D); ; r.Calls++ {
			from := time.Now()
			if from.After(end) {
				return r, nil
			}
			result, err := on.AllowN(ctx, c.Key, 1)
			if err != nil && file == nil { // with a log, faults are part of the test
				return r, err
			}
			if result.Granted > 0 {
				a := sidebyside.Admission{From: from.UnixNano(), To: time.Now().UnixNano(), Tokens: result.Granted}
				r.Admissions = append(r.Admissions, a)
				if file != nil {
					if _, err := fmt.Fprintln(file, a.From, a.To, a.Tokens); err != nil {
						return r, err
					}
				}
			}
			if result.Source == ginlimit.FromLease {
				r.Leased++
			}
			<-ticker.C
		}
	})
}

// takeAndSettle has each caller make N calls: it takes tokens, or reserves some and settles them
// twice, with less or more. Net is what they come to.
func takeAndSettle(ctx context.Context, on *ginlimit.Policy, c sidebyside.Command) (sidebyside.Reply, error) {
	return together(c, func(random *rand.Rand) (r sidebyside.Reply, err error) {
		for range c.N {
			r.Calls++
			n := 1 + random.IntN(5)
			if random.IntN(3) == 0 {
				result, err := on.AllowUpTo(ctx, c.Key, n)
				if err != nil {
					return r, err
				}
				r.Net += result.Granted
				continue
			}
			reserved, err := on.Reserve(ctx, c.Key, n)
			if err != nil {
				return r, err
			}
			actual := random.IntN(n + 2)
			if err := errors.Join(reserved.Settle(ctx, actual), reserved.Cancel(ctx)); err != nil {
				return r, err
			}
			if reserved.Result().Allowed {
				r.Net += actual
			}
		}
		return r, nil
	})
}

// holdSlots has callers take slots, hold them for a moment and release them, for a time. A counter
// in Redis says how many are held in all processes.
func (s *server) holdSlots(ctx context.Context, p *ginlimit.Policy, c sidebyside.Command) (sidebyside.Reply, error) {
	held := "held:" + c.Key
	return together(c, func(random *rand.Rand) (r sidebyside.Reply, err error) {
		for end := time.Now().Add(c.D); time.Now().Before(end); r.Calls++ {
			slot, err := p.Acquire(ctx, c.Key)
			if err != nil {
				return r, err
			}
			if !slot.Result().Allowed {
				continue
			}
			n, err := s.rdb.Incr(ctx, held).Result()
			if err != nil {
				return r, err
			}
			r.Most, r.Net = max(r.Most, n), r.Net+1
			if random.IntN(2) == 0 {
				if err := s.rdb.Ping(ctx).Err(); err != nil {
					return r, err
				}
			}
			if err := s.rdb.Decr(ctx, held).Err(); err != nil {
				return r, err
			}
			slot.Release()
		}
		return r, nil
	})
}
