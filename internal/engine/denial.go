package engine

import (
	"context"
	"strconv"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/denycache"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// askDenyCache denies what is known to be denied.
func (e *Engine) askDenyCache(_ context.Context, c *dispatch.Call, ask *Ask, answer *Answer) (done bool, err error) {
	if !e.isDenied(c, ask) {
		return false, nil
	}
	answer.judge(c, ask, FromCache)
	return true, nil
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

// isDenied reports whether a call is known to be denied, and if so sets its states.
func (e *Engine) isDenied(c *dispatch.Call, ask *Ask) bool {
	if c.Op.Charges == 0 || !e.isRemembered(c, ask) {
		return false
	}
	// A denial that banned nobody does not answer for one that is to ban.
	ban := c.Layout.Ban
	return ban < 0 || c.Op.Bans == bucket.NoBans || c.States[ban].Wait > 0
}

// isRemembered reports whether a denial of a call's charge is remembered, and if so sets its states.
func (e *Engine) isRemembered(c *dispatch.Call, ask *Ask) bool {
	s := denial(c)
	s.Waits = ask.waits()
	return e.denied.Lookup(s, c.States)
}

// noteDecision remembers that Redis denied a call, with what stands beside it, or forgets that it did.
func (e *Engine) noteDecision(c *dispatch.Call, allowed bool, beside denycache.Beside) {
	switch {
	case allowed:
		e.denied.Charge(denial(c))
	case c.Op.Charges > 0:
		d := denycache.Denial{States: c.States, Sent: c.Sent, Received: c.Received}
		d.Beside[0] = beside
		e.denied.Remember(denial(c), d)
	}
}

// askStore has the store decide.
func (e *Engine) askStore(ctx context.Context, c *dispatch.Call, ask *Ask, answer *Answer) (done bool, err error) {
	if err := e.store.Do(ctx, c); err != nil {
		return false, err
	}
	answer.receipt.fill(c.Sent, c.States)
	answer.judge(c, ask, FromStore)
	e.noteDecision(c, answer.Allowed, denycache.Beside{})
	return true, nil
}
