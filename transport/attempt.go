package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/traits"
)

// attempt is one request: what it took, and how far it has come.
type attempt struct {
	t        *transport
	key      string
	n        int
	took     time.Time
	reserved *ginlimit.Reservation // nil for tokens that were taken ahead
	first    *stop                 // it is the first one after this stop
	seen     *progress
}

// progress is how far a request has come, as its base says, and how it waits before. It is used again: a base that
// says so late may make another request seem to be sent, which then keeps its tokens.
type progress struct {
	getConn func(string)
	gotConn func(httptrace.GotConnInfo)
	begun   atomic.Bool // the base says how far it has come
	sent    atomic.Bool // the request has a connection and, with others on one of HTTP/2, a stream
	trace   atomic.Pointer[httptrace.ClientTrace]
	key     string
	first   *stop // as the attempt has it
	waiting traits.Waiting

	override []ginlimit.Limit // by which it waits; nil is none
}

// progress returns the progress of a request that has not begun.
func (t *transport) progress() *progress {
	p, ok := t.spare.Get().(*progress)
	if !ok {
		p = new(progress)
		p.getConn = func(string) { p.begun.Store(true) }
		p.gotConn = p.connected
		p.waiting = traits.Waiting{
			Max: maxWait, Length: maxQueue, Leaves: func() bool {
				return t.stops.holds(p.key, p.first) || !slices.Equal(p.override, t.has.Override(p.key))
			},
		}
	}
	p.waiting.Since = time.Now()
	p.begun.Store(false)
	p.sent.Store(false)
	return p
}

// connected is called when the request has a connection. On one of HTTP/2 with other requests it may wait for a
// stream: it then counts as sent once its first field is about to be written, as HTTP/2 says that all are written
// only after they were. If it is canceled in the microsecond before, it gives back what it took, and is sent and reset.
func (p *progress) connected(info httptrace.GotConnInfo) {
	trace := p.trace.Load()
	conn, ok := info.Conn.(interface{ ConnectionState() tls.ConnectionState })
	if trace == nil || !info.Reused || info.WasIdle || !ok || conn.ConnectionState().NegotiatedProtocol != "h2" {
		p.sent.Store(true)
		return
	}
	next := trace.WroteHeaderField
	trace.WroteHeaderField = func(name string, values []string) {
		p.sent.Store(true)
		if next != nil {
			next(name, values)
		}
	}
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
	for {
		if a.first, err = t.stops.wait(ctx, a.key); err != nil {
			return err
		}
		a.seen.key, a.seen.first, a.seen.override = a.key, a.first, t.has.Override(a.key)
		t.lowering.wait(ctx, a.key, a.n)
		if err = a.take(ctx); err == traits.ErrLeft { // as the key is stopped, or its limits are others
			a.leave()
			continue
		}
		if err != nil {
			return err
		}
		stopped := t.stops.holds(a.key, a.first) // while it waited
		if !stopped && ctx.Err() == nil {
			return nil
		}
		a.giveBack(ctx)
		if err = ctx.Err(); err != nil {
			return err
		}
		a.leave()
	}
}

// leave lets others go on, or the next one be the first: once, as the next stop of the key may have a first one too.
func (a *attempt) leave() {
	a.t.stops.leave(a.first)
	a.first = nil
}

// take takes the tokens, and a slot.
func (a *attempt) take(ctx context.Context) error {
	defer func() { a.took = time.Now() }()
	if !a.t.leased {
		return a.reserve(ctx)
	}
	err := a.t.has.Wait(ctx, a.key, a.n, a.seen.waiting)
	switch {
	case errors.Is(err, ginlimit.ErrInvalidArgument): // nothing allows it, or a client's own limits have slots
		return a.reserve(ctx)
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ginlimit.ErrUnavailable):
		waited := time.Since(a.seen.waiting.Since)
		if d := a.when(context.WithoutCancel(ctx)); d > 0 || hasEnded(ctx) || waited >= maxWait {
			return &TooLateError{d}
		}
	}
	return err
}

// hasEnded reports whether a context's deadline is over; else another's is, such as that of a function.
func hasEnded(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}

// reserve takes them by a reservation.
func (a *attempt) reserve(ctx context.Context) (err error) {
	a.reserved, err = a.t.has.Reserve(ctx, a.key, a.n, a.seen.waiting)
	result := a.reserved.Result()
	switch {
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ginlimit.ErrUnavailable) && hasEnded(ctx),
		result.Cause == ginlimit.CauseInFlight:
		return &TooLateError{}
	case err != nil || result.Allowed:
		return err
	}
	return &TooLateError{result.RetryAfter}
}

// when returns when the tokens would come, after those who wait before; 0 is not known.
func (a *attempt) when(ctx context.Context) time.Duration {
	soon := traits.Waiting{Max: time.Millisecond, Length: 1}
	r, err := a.t.has.Reserve(ctx, a.key, a.n, soon)
	if err == nil {
		_ = r.Cancel(ctx) // there are some meanwhile
	}
	return r.Result().RetryAfter
}

// fail gives back what a request took, or its slot alone if it may have been sent.
func (a *attempt) fail(ctx context.Context, err error) {
	var op *net.OpError
	var late *TooLateError // of a transport below
	unsent := a.seen.begun.Load() || errors.As(err, &op) && op.Op == "dial" || errors.As(err, &late)
	if unsent && !a.seen.sent.Load() {
		a.giveBack(ctx)
	} else {
		a.reserved.Release()
	}
}

// abandon ends an attempt in a panic, of the base or after its response.
func (a *attempt) abandon(ctx context.Context, response *http.Response) {
	if response == nil {
		a.fail(ctx, nil)
		return
	}
	a.reserved.Release()
	if response.Body != nil {
		_ = response.Body.Close()
	}
}

// giveBack gives back what was taken, but what has flowed back by itself meanwhile. An error leaves it taken.
func (a *attempt) giveBack(ctx context.Context) {
	if a.reserved != nil {
		_ = a.reserved.Cancel(ctx) // the context may have ended
		return
	}
	ctx = context.WithoutCancel(ctx)
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
		a.leave()
		a.lower(ctx, response.Header)
	}
	if a.reserved == nil {
		return
	}
	b := &body{ReadCloser: response.Body, attempt: *a}
	b.end = sync.OnceFunc(func() { b.attempt.end(ctx, response) })
	if response.Body == nil || response.Body == http.NoBody {
		b.end()
		return
	}
	switch w := response.Body.(type) {
	case closeWriter:
		response.Body = &halfStream{b, w}
	case io.Writer: // of a 101
		response.Body = &stream{b, w}
	default:
		response.Body = b
	}
}

// end settles and releases.
func (a *attempt) end(ctx context.Context, response *http.Response) {
	defer a.reserved.Release()
	if a.t.settle == nil {
		return
	}
	if actual := a.t.settle(response); actual >= 0 {
		// What the response said is left does not know of it.
		a.t.lowering.wait(context.WithoutCancel(ctx), a.key, math.MaxInt)
		_ = a.reserved.Settle(ctx, actual) // after an error the estimate stands
	}
}

// body is a response's body that releases what its request holds.
type body struct {
	io.ReadCloser
	attempt attempt
	end     func()
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (n int, err error) {
	if n, err = b.ReadCloser.Read(p); err != nil {
		b.attempt.reserved.Release()
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

// halfStream is a stream of which the writing side can be closed alone.
type halfStream struct {
	*body
	closeWriter
}

type closeWriter interface {
	io.Writer
	CloseWrite() error
}
