package ginlimit

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// probeTimeout is how long a probe may take to make a connection. The answer counts only if it is in time.
	probeTimeout = time.Second
	// probesOut is how many probes may be unanswered, each of which may hold a connection of the client.
	probesOut = 4
	// blindProbes is how often the client is asked though Redis does not seem to be there, as a hook may have other
	// ways to it.
	blindProbes = 5 * time.Second
)

// prober sends probes, one at a time unless they are not answered.
type prober struct {
	*dispatcher
	dials   chan struct{} // those that have not returned
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
			if answer == answerInTime { // once it had a connection
				return true
			}
			waits = answer == noAnswer
		case <-p.breaker.ctx.Done():
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
	timer.Reset(min(p.timeout.span, latestProbe))
	select {
	case answer := <-p.answers:
		p.out--
		return answer == answerInTime
	case <-timer.C:
	case <-p.breaker.ctx.Done():
	}
	return false
}

// probe looks at the bucket if Redis seems to be there.
func (p *prober) probe(blind bool) {
	defer p.ended.Done()
	answer := noAnswer
	defer func() { p.answers <- answer }()
	ctx, cancel := context.WithTimeout(p.breaker.ctx, max(p.timeout.span, probeTimeout))
	defer cancel()
	if !p.seemsThere(ctx) && !blind {
		return
	}
	b := newBatch()
	b.asks = append(b.asks, p.look.look())
	b.merge()
	sent := time.Now()
	p.ship(ctx, b)
	switch {
	case b.failure() != nil:
	case time.Since(sent) < p.timeout.span:
		answer = answerInTime
	default:
		answer = lateAnswer
	}
}

// seemsThere reports whether the bucket's server says anything. It leaves a dialer that does not end with its
// context, as that for TLS does not.
func (p *prober) seemsThere(ctx context.Context) bool {
	s := p.breaker.server
	if s.dial == nil {
		return true
	}
	there := make(chan bool, 1)
	select {
	case p.dials <- struct{}{}:
	default:
		return false // so many dialers hang
	}
	p.ended.Add(1)
	go func() {
		defer p.ended.Done()
		defer func() { <-p.dials }()
		answers := false
		defer func() {
			_ = recover() // of a dialer that panics: go-redis survives it too
			there <- answers
		}()
		answers = s.answers(ctx, p.look.names[0].String(), p.timeout.span)
	}()
	select {
	case answers := <-there:
		return answers
	case <-ctx.Done():
		return false
	}
}

// server is what a dispatcher knows of where it sends.
type server struct {
	log  *slog.Logger
	addr string
	pool int // how many connections the client may have to it; 0 if that is not known
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
	conn, err := s.dial(ctx, key)
	if err != nil || conn == nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return false
	}
	if _, err := conn.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return false
	}
	_, err = conn.Read(make([]byte, 1)) // be it that it asks for a password
	return err == nil
}
