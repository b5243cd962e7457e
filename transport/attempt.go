package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit"
)

// attempt is one request: what it took, and how far it has come.
type attempt struct {
	t        *transport
	key      string
	n        int
	took     time.Time
	reserved *ginlimit.Reservation // nil if the policy takes tokens ahead
	first    *stop                 // it is the first one after this stop
	seen     *progress
}

// progress is how far a base says that it has come with a request. It is used again: a base that says so late may
// make another request seem to be sent, which then keeps its tokens.
type progress struct {
	getConn      func(string)
	wroteHeaders func()
	begun        atomic.Bool // the base says how far it has come
	sent         atomic.Bool // the request's header fields were written
}

// progress returns the progress of a request that has not begun.
func (t *transport) progress() *progress {
	p, ok := t.spare.Get().(*progress)
	if !ok {
		p = new(progress)
		p.getConn = func(string) { p.begun.Store(true) }
		p.wroteHeaders = func() { p.sent.Store(true) }
	}
	p.begun.Store(false)
	p.sent.Store(false)
	return p
}

// begin takes what the request needs, or returns why it may not be sent.
func (a *attempt) begin(ctx context.Context, r *http.Request) (err error) {
	t := a.t
	if a.key, err = t.key(r); err != nil {
		return fmt.Errorf("ginlimit: the key of a request: %w", err)
	}
	if a.key == "" {
		return fmt.Errorf("%w: a request has no host", ginlimit.ErrNoKey)
	}
	if a.n = 1; t.cost != nil {
		a.n = t.cost(r)
	}
	if a.first, err = t.stops.wait(ctx, a.key); err != nil {
		return err
	}
	err = a.take(ctx)
	if err == nil && ctx.Err() != nil { // while it waited
		a.giveBack(ctx)
		err = ctx.Err()
	}
	return err
}

// take takes the tokens, and a slot.
func (a *attempt) take(ctx context.Context) (err error) {
	if a.t.leased {
		err = a.t.policy.WaitN(ctx, a.key, a.n)
	} else {
		a.reserved, err = a.t.queued.Reserve(ctx, a.key, a.n)
	}
	a.took = time.Now()
	result := a.reserved.Result()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &TooLateError{a.when(context.WithoutCancel(ctx))}
	case err != nil || a.t.leased || result.Allowed:
		return err
	case result.RetryAfter < 0:
		return fmt.Errorf("%w: %s never allows %d at once", ginlimit.ErrInvalidArgument, result.Limit, a.n)
	}
	return &TooLateError{result.RetryAfter}
}

// when returns when the tokens would come, after those who wait before; 0 is not known.
func (a *attempt) when(ctx context.Context) time.Duration {
	r, err := a.t.hurried.Reserve(ctx, a.key, a.n)
	if err == nil {
		_ = r.Cancel(ctx) // there are some meanwhile
	}
	return max(0, r.Result().RetryAfter)
}

// fail gives back what a request took, or its slot alone if it may have been sent.
func (a *attempt) fail(ctx context.Context, err error) {
	var op *net.OpError
	if !a.seen.sent.Load() && (a.seen.begun.Load() || errors.As(err, &op) && op.Op == "dial") {
		a.giveBack(ctx)
	} else {
		a.reserved.Release()
	}
}

// giveBack gives back what was taken, but what has flowed back by itself meanwhile. An error leaves it taken.
func (a *attempt) giveBack(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	if a.reserved != nil {
		_ = a.reserved.Cancel(ctx)
		return
	}
	rows, err := a.t.policy.Status(ctx, a.key)
	left := a.n
	for _, row := range rows {
		left = min(left, a.n-int(flowed(row.Limit, time.Since(a.took))))
	}
	if err == nil && left > 0 {
		_ = a.t.policy.Refund(ctx, a.key, left)
	}
}

// flowed returns how many tokens flow back under a limit in a time.
func flowed(l ginlimit.Limit, d time.Duration) float64 {
	if l.Rate <= 0 || l.Period <= 0 {
		return 0
	}
	return min(float64(l.Rate)*float64(d)/float64(l.Period), math.MaxInt32)
}

// answered acts on what a response says of limits, and has its body release what the request holds.
func (a *attempt) answered(ctx context.Context, response *http.Response) {
	if d, stops := a.t.stopOf(response); stops {
		a.t.stops.add(a.key, time.Now().Add(d))
		_ = a.t.policy.Block(context.WithoutCancel(ctx), a.key, d) // without Redis this process has its own stop
	} else {
		a.t.stops.end(a.key, a.first)
		a.t.stops.leave(a.first)
		a.lower(ctx, response.Header)
	}
	if a.reserved == nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	if response.Body == nil || response.Body == http.NoBody {
		a.end(ctx, response)
		return
	}
	b := &body{response.Body, sync.OnceFunc(func() { a.end(ctx, response) }), a.reserved}
	if w, ok := response.Body.(io.Writer); ok { // of a 101
		response.Body = &stream{b, w}
	} else {
		response.Body = b
	}
}

// lookGap is how often a transport compares what the partner and the policy have left.
const lookGap = 100 * time.Millisecond

// lower takes what the policy has left more than the response says, less what may have flowed back since.
func (a *attempt) lower(ctx context.Context, h http.Header) {
	left, known := remaining(h, a.t.cost != nil)
	now := time.Now()
	last := a.t.looked.Load()
	if !known || a.reserved != nil && a.reserved.Result().Remaining <= left || now.UnixNano()-last < int64(lookGap) ||
		!a.t.looked.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	ctx = context.WithoutCancel(ctx)
	rows, _ := a.t.policy.Status(ctx, a.key)
	var rate []ginlimit.Result
	for _, row := range rows {
		if row.Limit.InFlight == 0 {
			rate = append(rate, row)
		}
	}
	if len(rate) != 1 || rate[0].Limit.Rate <= 0 { // which of several is meant, nobody knows
		return
	}
	if more := rate[0].Remaining - left - int(math.Ceil(flowed(rate[0].Limit, now.Sub(a.took)))); more > 0 {
		taken, err := a.t.hurried.Reserve(ctx, a.key, more)
		if err == nil {
			taken.Release()
		}
	}
}

// end settles and releases.
func (a *attempt) end(ctx context.Context, response *http.Response) {
	defer a.reserved.Release()
	if a.t.settle != nil {
		_ = a.reserved.Settle(ctx, a.t.settle(response)) // after an error the estimate stands
	}
}

// body is a response's body that releases what its request holds.
type body struct {
	io.ReadCloser
	end      func()
	reserved *ginlimit.Reservation
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (n int, err error) {
	if n, err = b.ReadCloser.Read(p); err != nil {
		b.reserved.Release()
	}
	return n, err
}

// Close implements [io.Closer].
func (b *body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// stream is the body of a 101 (Switching Protocols), which can be written to.
type stream struct {
	*body
	io.Writer
}
