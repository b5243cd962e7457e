package engine

import (
	"context"
	"strconv"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// denial returns what the deny cache knows a call by, of a request that waits or does not.
func denial(c *dispatch.Call, waits bool) denycache.Subject {
	s := denycache.Subject{Key: c.Key, Hash: c.Hash, Buckets: c.Buckets, N: c.Op.N, Waits: waits}
	if c.Op.Tenant.Name != "" {
		s.Shared = c.Hash
		s.Key = whoOf(c.Key, c.Op.Tenant)
		s.Key = strconv.AppendInt(append(s.Key, ' '), c.Op.Tenant.Weight, 10)
		s.Hash = clientkey.Hash(s.Key)
	}
	return s
}

// isDenied reports whether a denial of a call's charge is remembered, and if so sets its states.
func (e *Engine) isDenied(c *dispatch.Call, ask *Ask) bool {
	return e.denied.Lookup(denial(c, ask.turn > 0), c.States)
}

// noteDecision remembers that Redis denied a call, with what stands beside it, or forgets that it did.
func (e *Engine) noteDecision(c *dispatch.Call, allowed bool, beside denycache.Beside) {
	switch {
	case allowed:
		e.denied.Charge(denial(c, false))
	case c.Op.Charges > 0:
		d := denycache.Denial{States: c.States, Sent: c.Sent, Received: c.Received}
		d.Beside[0] = beside
		e.denied.Remember(denial(c, false), d)
	}
}

// askStore has the store decide.
func (e *Engine) askStore(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) error {
	if err := e.store.Do(ctx, c); err != nil {
		return err
	}
	if ask.Settles {
		answer.receipt = newReceipt(e.Timeout, c.Sent, c.States)
	}
	charges, fits := ask.Set.Fit(c.States, c.Op.Charges, c.Op.N)
	e.judge(ask, answer, ask.Set, c.States, c.Op.N, charges, fits)
	if e.denied != nil && ask.N > 0 { // what is free is allowed, whatever is left
		e.noteDecision(c, answer.Allowed, denycache.Beside{})
	}
	return nil
}
