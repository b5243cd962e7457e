package top

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/internal/clientkey"
)

//go:embed report.lua
var reportText string

//go:embed read.lua
var readText string

var reportScript, readScript = redis.NewScript(reportText), redis.NewScript(readText)

// report is what Redis does not have yet.
type report struct {
	summary
	number    uint64
	from, to  time.Time
	attempted bool // so Redis may have it, and it must not change
}

// redisKey returns the key of a policy's reports.
func redisKey(prefix, policy string) string {
	key := "denied:{"
	if prefix != "" {
		key = prefix + ":" + key
	}
	return string(clientkey.Text{}.Append([]byte(key), "", clientkey.Join(policy))) + "}"
}

// run reports every interval, and once more at the end.
func (r *Reporter) run() {
	defer close(r.stopped)
	ticker := time.NewTicker(r.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.report()
		case <-r.stop:
			r.report()
			return
		}
	}
}

// report sends what was counted, of each policy what is oldest first. What Redis does not take is kept for the
// next round, and dropped when it is older than Redis would keep it.
func (r *Reporter) report() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if r.full.Load() {
		r.warn(fmt.Sprintf("more than %d policies", maxPolicies))
	}
	for _, p := range *r.policies.Load() { // in any order, so no server that is away holds up the same policies
		p.enqueue(p.take(r.keys), time.Now())
		for len(p.pending) > 0 && ctx.Err() == nil {
			if err := r.send(ctx, p, p.pending[0]); err != nil {
				r.warn(reason(err))
				break
			}
			p.pending = p.pending[1:]
		}
	}
}

// enqueue adds what was counted until now to what is to be reported, and drops what is too old. At most one
// report for each minute waits, and one that was attempted.
func (p *policy) enqueue(s summary, now time.Time) {
	for len(p.pending) > 0 && now.Sub(p.pending[0].to) > minutes*time.Minute {
		p.pending = p.pending[1:]
	}
	if s.isEmpty() {
		return
	}
	if n := len(p.pending); n > 0 {
		if last := p.pending[n-1]; !last.attempted && now.Sub(last.from) < time.Minute {
			last.summary, last.to = last.merge(s), now
			return
		}
	}
	p.pending = append(p.pending, &report{summary: s, from: now, to: now})
}

func (r *Reporter) send(ctx context.Context, p *policy, to *report) error {
	if !to.attempted {
		r.number++
		to.number, to.attempted = r.number, true
	}
	return reportScript.Run(ctx, r.rdb, []string{redisKey(r.prefix, p.name)}, r.process, to.number,
		time.Since(to.to).Milliseconds(), to.text(), minutes, counters, maxSeen).Err()
}

// warn logs that reports are missing, at most once a minute.
func (r *Reporter) warn(reason string) {
	if now := time.Now(); r.warned.IsZero() || now.Sub(r.warned) >= time.Minute {
		r.warned = now
		r.logger.Warn("ginlimit: denials and use are not reported", "reason", reason)
	}
}

// reason returns what may be logged of an error: the code of a reply, whose text may have a client's key, or what
// kind of error it is.
func reason(err error) string {
	var reply redis.Error
	var network net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "late"
	case errors.As(err, &network):
		return "network"
	case errors.As(err, &reply):
		code, _, _ := strings.Cut(reply.Error(), " ")
		return code
	}
	return fmt.Sprintf("%T", err)
}
