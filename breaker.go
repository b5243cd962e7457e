package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"
)

const (
	// lostFailures is how many failures in a row say that Redis is lost.
	lostFailures = 3
	// failuresApart is how soon after a failure another one counts, or half a timeout where that is sooner.
	failuresApart = 25 * time.Millisecond
	// A probe follows another after a time between these, and up to a half more or less, that doubles each time.
	soonestProbe, latestProbe = 50 * time.Millisecond, 320 * time.Millisecond
	// connectsApart is how often connections are made for batches that are late.
	connectsApart = time.Second
	// connectTrips is how many round trips a new connection may take, each as long as the timeout: two or three for
	// greetings, and one for the look. It may take probeTimeout at most, or the timeout where that is longer.
	connectTrips = 5
	// steadyTime is how long Redis must not be lost again to be back.
	steadyTime = time.Second
)

var errLost = errors.New("not asked, as Redis is lost")

// breaker keeps callers from waiting for a server that is lost, until it is found back.
//
// It opens after a few failures in a row. Then one goroutine probes for the server, by a look at a bucket, which
// changes nothing, so that nothing is replayed when the server is back. A look that is answered in time closes it,
// and the next failure opens it again, unless a decision was answered before. Its fields are the dispatcher's,
// behind its lock.
type breaker struct {
	server   *server
	failures int // in a row
	failed   time.Time
	lost     bool
	seeking  bool          // the goroutine that probes is there
	again    chan struct{} // lost again, while that waits whether Redis is there to stay
	ctx      context.Context
	stop     context.CancelFunc // with the dispatcher
}

func newBreaker(s *server) breaker {
	ctx, stop := context.WithCancel(context.Background())
	return breaker{server: s, again: make(chan struct{}, 1), ctx: ctx, stop: stop}
}

// answeredLocked notes that Redis has answered in time.
func (d *dispatcher) answeredLocked() {
	d.healthy, d.breaker.failures = true, 0
}

// failedLocked notes that an ask was not answered. Many that fail at once count as one, as when a proxy cuts all
// connections.
func (d *dispatcher) failedLocked(now time.Time, a *ask, err error) {
	d.healthy = false
	d.countLocked(now, a, err)
	if isLate(err) && d.direct && !d.connecting && !d.breaker.lost && !d.closed && now.Sub(d.connected) >= connectsApart {
		d.connecting = true
		d.ended.Add(1)
		go d.reconnect(a.look())
	}
}

// countLocked counts a failure, and has Redis sought if it is lost.
func (d *dispatcher) countLocked(now time.Time, a *ask, err error) {
	b := &d.breaker
	if b.lost || d.closed || now.Sub(b.failed) < min(d.timeout.span/2, failuresApart) {
		return
	}
	b.failures, b.failed = b.failures+1, now
	if b.failures < lostFailures {
		return
	}
	b.lost = true
	d.failWaitingLocked(errLost)
	if b.seeking {
		select {
		case b.again <- struct{}{}:
		default:
		}
		return
	}
	b.seeking = true
	d.ended.Add(1)
	go d.seek(a.look(), err)
}

// seek probes for Redis until it answers in time, and stays.
func (d *dispatcher) seek(look *ask, err error) {
	defer d.ended.Done()
	b, since := &d.breaker, time.Now()
	b.server.log.Warn("ginlimit: Redis is lost; no decision waits for it until it is back", "server", b.server.addr, "reason", reason(err))
	p := prober{dispatcher: d, look: look, answers: make(chan probeAnswer, probesOut), blind: since,
		dials: make(chan struct{}, 2*probesOut)}
	for again := soonestProbe; ; again = min(2*again, latestProbe) { // after a while, the more often it is lost again
		pause := again
		for !p.find(pause/2 + rand.N(pause)) {
			if b.ctx.Err() != nil {
				return
			}
			pause = min(2*pause, latestProbe)
		}
		found := time.Since(since)
		if d.direct {
			d.connect(look)
		}
		if d.steady() {
			b.server.log.Info("ginlimit: Redis is back", "server", b.server.addr, "after", found)
			return
		}
		if b.ctx.Err() != nil {
			return
		}
	}
}

// steady closes the breaker, and reports whether it stays so.
func (d *dispatcher) steady() bool {
	b := &d.breaker
	d.mu.Lock()
	b.lost, b.failures, b.failed = false, lostFailures-1, time.Time{}
	d.mu.Unlock()
	timer := time.NewTimer(steadyTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.again:
		return false
	case <-b.ctx.Done():
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-b.again:
	default:
	}
	b.seeking = b.lost
	return !b.lost
}

// reconnect has the client make connections for all batches that may be in flight. A client that ends a call with its
// context ends the greetings of a new connection too: on a way of which a few round trips take longer than the timeout
// no batch would ever have one.
func (d *dispatcher) reconnect(look *ask) {
	defer d.ended.Done()
	d.connect(look)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connecting, d.connected = false, time.Now()
}

// connect looks at a bucket, which changes nothing, with as many calls at once as may be. It waits for them no longer
// than they may take.
func (d *dispatcher) connect(look *ask) {
	ctx, cancel := context.WithTimeout(d.breaker.ctx, min(connectTrips*d.timeout.span, max(d.timeout.span, probeTimeout)))
	defer cancel()
	done := make(chan struct{}, cap(d.looks))
	sent := 0
	for range cap(d.looks) {
		select {
		case d.looks <- struct{}{}:
		default:
			continue // so many hang
		}
		sent++
		d.ended.Go(func() {
			defer func() { <-d.looks; done <- struct{}{} }()
			b := newBatch()
			b.asks = append(b.asks, look.look())
			b.merge()
			d.ship(ctx, b)
		})
	}
	for range sent {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// isLate reports whether an error says that there was no answer in time.
func isLate(err error) bool {
	var network net.Error
	return errors.Is(err, errLate) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}

// reason is what the log may say of an error: nothing that a client has sent, nor what another party put into it.
func reason(err error) string {
	var network *net.OpError
	switch {
	case isLate(err):
		return "late"
	case isRefusal(err):
		code, _, _ := strings.Cut(err.Error(), " ")
		return code
	case errors.As(err, &network) || errors.Is(err, io.EOF):
		return err.Error()
	}
	return fmt.Sprintf("%T", err)
}
