package engine

import (
	"context"
	"strconv"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

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
	switch {
	case e.denied == nil || ask.N == 0: // what is free is allowed, whatever is left
	case fits:
		e.denied.Charge(denial(c))
	default:
		e.remember(c, denycache.Beside{})
	}
	return nil
}

// denial returns what the deny cache knows a call by.
func denial(c *dispatch.Call) denycache.Subject {
	s := denycache.Subject{Key: c.Key, Hash: c.Hash, Buckets: c.Buckets, N: c.Op.N}
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
	s := denial(c)
	s.Waits = ask.turn > 0
	return e.denied.Lookup(s, c.States)
}

// remember remembers that Redis denied a call that takes, and what was looked at beside it.
func (e *Engine) remember(c *dispatch.Call, beside denycache.Beside) {
	if c.Op.Charges > 0 {
		d := denycache.Denial{States: c.States, Sent: c.Sent, Received: c.Received}
		d.Beside[0] = beside
		e.denied.Remember(denial(c), d)
	}
}
