package dispatch

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// Transport carries batches to a server.
type Transport interface {
	// Send has the server decide every group of a batch, in the order of the groups on each key, and
	// sets Found or Err of each. It returns an error if the server answers nobody now, and nil if it
	// has answered, even if by errors.
	Send(ctx context.Context, b *Batch) error
	// Ping returns why the server of a key does not answer within a timeout on a connection of its
	// own, or nil if it does or nobody knows how to connect to it. It ends with the context.
	Ping(ctx context.Context, key string, timeout time.Duration) error
	// Reason returns a text of an error for the log, without anything that a client has sent, and
	// one of few words for metrics. If the error says only that there was no answer in time, Reason
	// pings the server of a key to find the cause.
	Reason(ctx context.Context, key string, err error) (text, word string)
}

// Server is what a dispatcher knows of its server.
type Server struct {
	Transport Transport
	Log       *slog.Logger
	Addr      string
	Conns     int          // how many connections there may be to it; 0 is not known
	OneOfMany bool         // it gets a part of the store's calls: one batch of queued calls is in flight at low latency
	Outage    func() []any // more of the log line of an outage; nil is none
	Dropped   *atomic.Bool // nobody calls the dispatcher any more; nil is never
	Inline    bool         // every call of Send ends when its context does, so a caller may send its call itself
}
