package dispatch

import (
	"context"
	"log/slog"
	"time"
)

// Transport carries batches to a server.
type Transport interface {
	// Send has every merged call of a batch done, in their order on each key, and sets Found or Err
	// of each. It returns an error if the server answers nobody now, and nil if it has answered, be
	// it by errors.
	Send(ctx context.Context, b *Batch) error
	// Ping returns why the server of a key does not answer within a timeout on a connection of its
	// own, or nil if it does or nobody knows how to connect to it. It ends with the context.
	Ping(ctx context.Context, key string, timeout time.Duration) error
	// Reason returns what the log may say of an error, nothing that a client has sent, and one of
	// few words for metrics. If the error says no more than that there was no answer in time, it
	// connects to see the cause.
	Reason(ctx context.Context, err error) (text, word string)
}

// Server is what a dispatcher knows of where it sends.
type Server struct {
	Transport Transport
	Log       *slog.Logger
	Addr      string
	Conns     int  // how many connections there may be to it; 0 is not known
	OneOfMany bool // its calls are a part of those of the store: one batch is in flight while it is near, as two would be small
	Inline    bool // every call of Send ends when its context does, so a caller may send its call itself
}
