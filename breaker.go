package ginlimit

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// lostFailures is how many failures in a row say that Redis is lost.
	lostFailures = 3
	// failuresApart is how far apart they are at most; those within half a timeout are one.
	failuresApart = 25 * time.Millisecond
	// A probe follows another after a time between these, and up to a half more or less, that doubles each time.
	soonestProbe, latestProbe = 50 * time.Millisecond, 400 * time.Millisecond
	// probeTimeout is how long a probe may take to make a connection. The answer counts only if it is in time.
	probeTimeout = time.Second
	// probesOut is how many probes may be unanswered, each of which may hold a connection of the client.
	probesOut = 4
	// blindProbes is how often the client is asked though Redis does not seem to be there, as a hook may have other
	// ways to it.
	blindProbes = 5 * time.Second
)

var errLost = errors.New("not asked, as Redis is lost")

// breaker keeps callers from waiting for a server that is lost, until it is found back.
//
// It opens when nothing is answered in time for a while. Then one goroutine probes for the server, by a look
// at a bucket, which changes nothing, so that nothing is replayed when the server is back. It is closed by the
// first answer in time. Its fields are the dispatcher's, behind its lock.
type breaker struct {
	server   *server
	failures int // in a row
	failed   time.Time
	lost     bool
	stop     chan struct{} // closed with the dispatcher
}

func newBreaker(s *server) breaker { return breaker{server: s, stop: make(chan struct{})} }

// answeredLocked notes that Redis has answered in time.
func (d *dispatcher) answeredLocked() {
	d.healthy, d.breaker.failures = true, 0
}

// failedLocked notes that an ask was not answered. Many that fail at once count as one, as when a proxy cuts all connections.
func (d *dispatcher) failedLocked(now time.Time, a *ask, err error) {
	d.healthy = false
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
	d.ended.Add(1)
	go d.seek(a.look(), err)
}

// seek probes for Redis until it answers in time.
func (d *dispatcher) seek(look *ask, err error) {
	defer d.ended.Done()
	b, since := &d.breaker, time.Now()
	b.server.log.Warn("ginlimit: Redis is lost; no decision waits for it until it is back", "server", b.server.addr, "error", err)
	p := prober{dispatcher: d, look: look, answers: make(chan probeAnswer, probesOut), blind: since}
	for pause := soonestProbe; !p.find(pause/2 + rand.N(pause)); pause = min(2*pause, latestProbe) {
		select {
		case <-b.stop:
			return
		default:
		}
	}
	d.mu.Lock()
	b.lost, b.failures = false, 0
	d.mu.Unlock()
	b.server.log.Info("ginlimit: Redis is back", "server", b.server.addr, "after", time.Since(since))
}

// prober sends probes, one at a time unless they are not answered.
type prober struct {
	*dispatcher
	look    *ask
	out     int // unanswered
	answers chan probeAnswer
	blind   time.Time // when the client was last asked whether Redis seems to be there or not
}

type probeAnswer uint8

const (
	noAnswer probeAnswer = iota
	lateAnswer
	answerInTime
)

// find waits, sends a probe and reports whether Redis answers in time. A late answer is a reason to wait no
// longer: Redis may have woken up, or a new connection be ready now.
func (p *prober) find(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for waits := true; waits; {
		select {
		case <-timer.C:
			waits = false
		case answer := <-p.answers:
			p.out--
			waits = answer == noAnswer
		case <-p.breaker.stop:
			return false
		}
	}
	if p.out == probesOut {
		return false
	}
	p.out++
	blind := time.Since(p.blind) >= blindProbes
	if blind {
		p.blind = time.Now()
	}
	p.ended.Add(1)
	go p.probe(blind)
	timer.Reset(p.timeout.span)
	select {
	case answer := <-p.answers:
		p.out--
		return answer == answerInTime
	case <-timer.C:
	case <-p.breaker.stop:
	}
	return false
}

// probe looks at the bucket if Redis seems to be there.
func (p *prober) probe(blind bool) {
	defer p.ended.Done()
	answer := noAnswer
	defer func() { p.answers <- answer }()
	ctx, cancel := context.WithTimeout(context.Background(), max(p.timeout.span, probeTimeout))
	defer cancel()
	if !p.breaker.server.answers(ctx, p.look.names[0].String(), p.timeout.span) && !blind {
		return
	}
	b := newBatch()
	b.asks = append(b.asks, p.look.look())
	b.merge()
	sent := time.Now()
	p.ship(ctx, b)
	switch {
	case b.lost() != nil:
	case time.Since(sent) < p.timeout.span:
		answer = answerInTime
	default:
		answer = lateAnswer
	}
}

// server is what a dispatcher knows of where it sends.
type server struct {
	log  *slog.Logger
	addr string
	// dial connects to the server of a key, as the client does; nil if it is not known how.
	dial func(ctx context.Context, key string) (net.Conn, error)
}

// dial connects to a client's server.
func dial(ctx context.Context, rdb *redis.Client) (net.Conn, error) {
	opts := rdb.Options()
	return opts.Dialer(ctx, opts.Network, opts.Addr)
}

// answers reports whether the server of a key says anything within a timeout. The connection is not one of the
// client's: those that a lost Redis never answers are held for as long as the client's own timeouts are, and after
// so many failures as it has connections the client makes none for a second.
func (s *server) answers(ctx context.Context, key string, timeout time.Duration) bool {
	if s.dial == nil {
		return true
	}
	conn, err := s.dial(ctx, key)
	if err != nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return false
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	_, err = conn.Read(make([]byte, 1)) // be it that it asks for a password
	return err == nil
}

// lostReplies begin the errors by which a server says that it decides for nobody now.
var lostReplies = []string{"LOADING", "BUSY", "NOAUTH", "WRONGPASS", "MASTERDOWN", "CLUSTERDOWN", "ERR max number of clients"}

// isReply reports whether an error is what Redis replies to one command, and not to any.
func isReply(err error) bool {
	if !isRefusal(err) {
		return false
	}
	for _, lost := range lostReplies {
		if redis.HasErrorPrefix(err, lost) {
			return false
		}
	}
	return true
}
