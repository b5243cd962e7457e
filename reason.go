package ginlimit

import (
	"context"
	"errors"

	"github.com/ginlimit/ginlimit/internal/engine"
)

// Reason is why Redis did not decide, or why there is no decision: see docs/operations.md. Later
// versions may add others.
type Reason string

const (
	ReasonLate              Reason = "late"         // no answer in time
	ReasonBreakerOpen       Reason = "breaker_open" // the circuit breaker is open
	ReasonQueueFull         Reason = "queue_full"   // too many decisions wait for this server
	ReasonConnectionRefused Reason = "connection_refused"
	ReasonUnknownHost       Reason = "unknown_host"
	ReasonNetwork           Reason = "network"
	ReasonTLS               Reason = "tls"
	ReasonPool              Reason = "pool"   // the client had no free connection
	ReasonClient            Reason = "client" // the Redis client or a hook of it failed

	ReasonAsk, ReasonBusy, ReasonClusterDown, ReasonCrossSlot Reason = "ASK", "BUSY", "CLUSTERDOWN", "CROSSSLOT"
	ReasonErr, ReasonLoading, ReasonMasterDown, ReasonMisconf Reason = "ERR", "LOADING", "MASTERDOWN", "MISCONF"
	ReasonMoved, ReasonNoAuth, ReasonNoPerm, ReasonNoReplicas Reason = "MOVED", "NOAUTH", "NOPERM", "NOREPLICAS"
	ReasonNoScript, ReasonOOM, ReasonReadOnly, ReasonTryAgain Reason = "NOSCRIPT", "OOM", "READONLY", "TRYAGAIN"
	ReasonWrongPass, ReasonWrongType, ReasonReply             Reason = "WRONGPASS", "WRONGTYPE", "reply" // another code

	ReasonCanceled        Reason = "canceled"         // no decision: the client left
	ReasonDeadline        Reason = "deadline"         // the caller's context ends before
	ReasonNoKey           Reason = "no_key"           // [ErrNoKey]
	ReasonBadRequest      Reason = "bad_request"      // [ErrBadRequest]
	ReasonKeyFunc         Reason = "key_func"         // the [KeyFunc] failed
	ReasonUnknownClient   Reason = "unknown_client"   // [ErrUnknownClient]
	ReasonLimitFunc       Reason = "limit_func"       // the function of [WithLimitFunc] failed
	ReasonInvalidArgument Reason = "invalid_argument" // it returned unusable limits, or the cost is negative
	ReasonClosed          Reason = "closed"           // the limiter is closed
)

// failure is why Redis did not decide, or why there is no decision.
type failure struct {
	err    error  // that there is no decision
	store  error  // what the store said last that did not decide
	origin Reason // of err, if that is a function of the application
}

// reason returns the Event's Reason of a decision, or of an error. The context is the caller's.
func (f failure) reason(ctx context.Context, r Result) Reason {
	switch {
	case f.err == nil && r.Source != FromLocal && r.Source != FromOpen:
		return "" // an earlier try of a Wait may have failed
	case f.err == nil:
		return Reason(engine.Reason(f.store))
	case errors.Is(f.err, ErrNoKey):
		return ReasonNoKey
	case errors.Is(f.err, ErrBadRequest):
		return ReasonBadRequest
	case errors.Is(f.err, ErrUnknownClient):
		return ReasonUnknownClient
	case errors.Is(f.err, ErrInvalidArgument):
		return ReasonInvalidArgument
	case errors.Is(f.err, ErrUnavailable) && f.origin == "":
		return Reason(engine.Reason(f.err))
	case f.origin != "" && ctx.Err() == nil: // it may wrap ErrUnavailable of Plans, or the end of a context of its own
		return f.origin
	case errors.Is(f.err, context.Canceled):
		return ReasonCanceled
	case errors.Is(f.err, context.DeadlineExceeded):
		return ReasonDeadline
	}
	return f.origin
}
