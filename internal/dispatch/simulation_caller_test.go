package dispatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// simOp is one Do.
type simOp struct {
	id      int
	p       *process
	key     *simKey
	op      bucket.Op
	call    *Call
	cancel  context.CancelFunc
	start   time.Time
	ctxEnd  time.Time // far away if the context does not end
	ctxErr  error
	cancels bool // the context may end
	dead    bool // the context had ended before
	silent  bool // and does not say so
	ended   bool // Do has returned, or its goroutine has ended
	inline  bool
	sends   int
	sentAt  time.Time
	flight  *simFlight
	answer  error // of the transport
	answers time.Time
	endedAt time.Time
	want    []bucket.State // nil if it was not done
}

// simCaller asks one thing after another.
type simCaller struct {
	s     *simulation
	p     *process
	r     *rand.Rand
	pace  int
	calm  bool // the server is well, so it must answer
	spare *Call
	marks map[*simKey][]bucket.Claim // of what it has taken
}

func newCaller(s *simulation, p *process, i int) *simCaller {
	r := s.rand(1, uint64(i))
	return &simCaller{s: s, p: p, r: r, pace: r.IntN(4), marks: map[*simKey][]bucket.Claim{}}
}

func (c *simCaller) run(ops int) {
	for range ops {
		time.Sleep(c.pause(ops))
		gone := make(chan struct{})
		go func() { // a Goexit ends it
			defer close(gone)
			c.ask(c.drawOp())
		}()
		<-gone
	}
}

func (c *simCaller) pause(ops int) time.Duration {
	mean := int(c.s.horizon/time.Millisecond)/ops + 1
	switch c.pace {
	case 0: // eager
		return time.Duration(c.r.IntN(3)/2) * time.Millisecond
	case 1: // a trickle
		return time.Duration(c.r.IntN(2*mean)) * time.Millisecond
	case 2: // together with others
		gap := c.p.timeout / 2
		return gap - c.s.now()%gap
	default: // at times of its own
		return time.Duration(c.r.Int64N(int64(2*mean) * int64(time.Millisecond)))
	}
}

func (c *simCaller) drawOp() *simOp {
	k := &c.s.keys[c.r.IntN(len(c.s.keys))]
	o := &simOp{p: c.p, key: k, op: bucket.Op{Verb: bucket.Take, Charges: 1, N: 1}}
	switch n := c.r.IntN(20); {
	case n == 0:
		o.op = bucket.Op{Verb: bucket.Give, N: 1 + c.r.Int64N(5)}
	case n <= 2:
		o.op = bucket.Op{Verb: bucket.Return, N: 1 + c.r.Int64N(2), Claims: c.marks[k]}
		for range len(k.buckets) - len(c.marks[k]) {
			o.op.Claims = append(o.op.Claims, bucket.Claim{Mark: bucket.NoMark})
		}
	case n == 3:
		o.op = bucket.Op{Verb: bucket.Block, N: 1 + c.r.Int64N(200)}
	case n == 4 && c.r.IntN(2) == 0:
		o.op = bucket.Op{Verb: bucket.Reset}
	case n <= 6:
		o.op = bucket.Peek(1 + c.r.Int64N(2))
	case n <= 9:
		o.op.Charges, o.op.N = 1+c.r.Int64N(3), 1+c.r.Int64N(2)
	}
	return o
}

// context draws how long the caller stays.
func (c *simCaller) context(o *simOp) context.Context {
	ctx, after := context.Background(), time.Duration(c.r.IntN(int(2*c.p.timeout/time.Millisecond)))*time.Millisecond
	o.cancel, o.ctxEnd, o.ctxErr = func() {}, o.start.Add(time.Hour), context.Canceled
	switch n := c.r.IntN(20); {
	case n < 7:
	case n < 11:
		ctx, o.cancel = context.WithCancel(ctx)
	case n < 15:
		o.ctxEnd, o.ctxErr = o.start.Add(after), context.DeadlineExceeded
		ctx, o.cancel = context.WithDeadline(ctx, o.ctxEnd)
		o.dead = after == 0
	case n < 18:
		o.ctxEnd = o.start.Add(after)
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		timer := time.AfterFunc(after, cancel)
		o.cancel = func() { timer.Stop(); cancel() }
	case n < 19:
		ctx, o.cancel = context.WithCancel(ctx)
		o.cancel()
		o.dead, o.ctxEnd = true, o.start
	default:
		o.dead, o.silent, ctx = true, true, deadContext{ctx}
	}
	return ctx
}

// ask has one Do, and checks what becomes of it.
func (c *simCaller) ask(o *simOp) {
	s, call := c.s, c.spare
	if c.spare = nil; call == nil {
		call = NewCall()
	}
	o.call, o.start = call, time.Now()
	call.Reset(o.op, o.key.buckets)
	call.Key, call.Hash = append(call.Key, o.key.key...), o.key.hash
	call.Others = append(call.Others, o.key.others...)
	for i := range call.Names {
		call.Names[i] = append(append(call.Names[i][:0], "name of "...), o.key.key...)
	}
	ctx := c.context(o)
	o.cancels = ctx.Done() != nil

	s.mu.Lock()
	s.asked++
	o.id = s.asked
	s.ops[call] = o
	if !o.silent {
		c.p.waiting++
	}
	c.p.mayExpire = true
	s.traceLocked(c.p, "op %d asks %s: %+v, its context ends at +%s",
		o.id, o.key.key, o.op, millis(o.ctxEnd.Sub(o.start)))
	s.mu.Unlock()
	s.happens()

	returned := false
	var err error
	defer func() {
		s.mu.Lock()
		o.ended, o.endedAt = true, time.Now()
		if !o.silent {
			c.p.waiting--
		}
		if returned {
			s.traceLocked(c.p, "op %d returns %v", o.id, err)
			c.checkLocked(o, err)
		} else if s.traceLocked(c.p, "op %d has no goroutine any more", o.id); !o.inline || !o.flight.goexit {
			s.faultLocked("op %d: its goroutine has ended", o.id)
		}
		s.mu.Unlock()
		s.happens()
		o.cancel()
	}()
	err = c.p.d.Do(ctx, call)
	returned = true
}

// checkLocked looks whether a Do has returned what it should, and when.
func (c *simCaller) checkLocked(o *simOp, err error) {
	s, p, call, now := c.s, c.p, o.call, time.Now()
	fault := func(why string) {
		s.faultLocked("op %d, asked at %s, returns %v: %s", o.id, millis(o.start.Sub(s.start)), err, why)
	}
	timeout := o.start.Add(time.Hour)
	if queued := call.caller.ends[1] != nil; queued {
		timeout, _ = call.caller.ends[1].Deadline()
		if after := timeout.Sub(o.start); after < p.timeout || after > p.timeout+p.timeout/10 {
			fault("its timeout is " + after.String())
		}
	}
	leaves := o.ctxEnd
	if timeout.Before(leaves) {
		leaves = timeout
	}
	switch refused := err == ErrOpen || err == ErrClosed || err == ErrQueueFull; {
	case refused:
		p.checkRefusalLocked(o, err, fault)
	case call.Abandoned():
		p.mayExpire, p.mustExpire = true, true
		switch {
		case o.inline:
			fault("it was sent inline, and is abandoned")
		case !o.answers.IsZero() && o.answers.Before(now):
			fault("it had been answered")
		case err == ErrLate && !p.closing.IsZero() && // Close ends the timeouts
			(o.silent || !now.Before(p.closing.Add(max(time.Second, p.timeout)))):
		case !now.Equal(leaves):
			fault("it leaves at another time than at " + millis(leaves.Sub(s.start)))
		case err == ErrLate && !now.Equal(timeout), err == o.ctxErr && !now.Equal(o.ctxEnd),
			err != ErrLate && err != o.ctxErr:
			fault("this is not why it leaves")
		}
		return // it may still be answered
	case o.answers.IsZero():
		fault("it is not answered")
	case !o.answers.Equal(now):
		fault("it was answered at " + millis(o.answers.Sub(s.start)))
	case !o.inline && now.After(leaves):
		fault("it should have left at " + millis(leaves.Sub(s.start)))
	case o.inline && !o.flight.deaf && now.After(o.start.Add(p.timeout+p.timeout/10)):
		fault("inline, it takes longer than the timeout")
	case err == nil && (o.answer != nil || o.want == nil),
		o.answer == errDies && err != nil && !strings.HasPrefix(err.Error(), "the Redis client panics"),
		err != nil && o.answer != errDies && !errors.Is(err, o.answer):
		fault("the transport's answer is " + errText(o.answer))
	case err == nil && (!call.Sent.Equal(o.sentAt) || !call.Received.Equal(o.answers)):
		fault("its times are wrong")
	case err == nil:
		for i := range call.Buckets {
			if got, want := found(call, i, call.States), found(call, i, o.want); got != want {
				s.faultLocked("op %d: bucket %d is %+v, want %+v: states %+v, want %+v",
					o.id, i, got, want, call.States, o.want)
			}
		}
		if o.op.Verb == bucket.Take && o.op.Charges > 0 && fits(call, call.States) > 0 {
			c.marks[o.key] = nil
			for i := range call.States {
				c.marks[o.key] = append(c.marks[o.key], bucket.Claim{Mark: call.States[i].Mark})
			}
		}
	}
	if c.calm && err != nil && err != errReply {
		fault("the server is well")
	}
	if len(call.caller.done) > 0 {
		fault("it has another answer")
	}
	// The call is its caller's again.
	delete(s.ops, call)
	call.Release()
	for i := range call.States {
		call.States[i] = bucket.State{Level: -1}
	}
	c.spare = call
}

// checkRefusalLocked looks at an error of the dispatcher's own.
func (p *process) checkRefusalLocked(o *simOp, err error, fault func(string)) {
	now := time.Now()
	switch {
	case o.sends > 0:
		fault("it was sent")
	case o.call.Abandoned():
		fault("it is abandoned")
	case err == ErrClosed && (p.closing.IsZero() || !now.Equal(o.start) && !now.Equal(p.closing)):
		fault("Close has not begun now")
	case err == ErrQueueFull && (!p.flooded || !now.Equal(o.start)):
		fault("the queue is not full")
	case err == ErrOpen && !now.Equal(o.start):
		p.flushed = true
	case err == ErrOpen:
		p.saidOpen = true
	}
}

func errText(err error) string {
	if err == nil {
		return "none"
	}
	return err.Error()
}

func fits(c *Call, states []bucket.State) int64 {
	granted := c.Op.Charges
	for i := range c.Buckets {
		granted = c.Buckets[i].Fit(states[i].Level, granted, max(1, c.Op.N))
	}
	return granted
}

// found is what a caller makes of a bucket's state.
func found(c *Call, i int, states []bucket.State) (is struct{ granted, left, more, full, retry, mark int64 }) {
	if c.Op.Verb == bucket.Block || c.Op.Verb == bucket.Reset {
		return is
	}
	b, state := &c.Buckets[i], states[i]
	if is.granted = fits(c, states); is.granted > 0 {
		state = b.Charged(state, is.granted, c.Op.N)
		if b.Kind != bucket.Token {
			is.mark = state.Mark
		}
	}
	is.left, is.more, is.full = b.Remaining(state.Level), b.MoreAfter(state), b.ResetAfter(state)
	if is.granted < c.Op.Charges {
		is.retry = b.RetryAfter(state, c.Op.N)
	}
	return is
}
