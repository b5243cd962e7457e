package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// ErrRetrySingle is the error of a group on which a script for several did not decide.
var ErrRetrySingle = errors.New("retry alone")

// To the slots in use, placeUnit times the place of a process among those that wait is added, and othersUnit times
// the slots that others hold: see guards.lua.
const placeUnit, othersUnit = 1 << 21, 1 << 31

// IsInteger reports whether the reply to groups is one integer, and no list.
func IsInteger(groups []*dispatch.Group) bool {
	return len(groups) == 1 && groups[0].Layout.Single && groups[0].Layout.Kinds == Tokens
}

// Decode reads the reply of a script into the groups. If only the first was sent, the others are to be retried.
func Decode(groups []*dispatch.Group, script int, reply []int64, onlyFirst bool) error {
	done := len(groups)
	if onlyFirst {
		done = 1
	}
	each, short := groups[0].Layout.All, false
	switch limits := script % Limits; {
	case script == Tenants:
		each = max(1, len(reply)) // see decodeTenants
	case script >= Node || limits < TokensCalendar:
	case len(reply) > 0 && reply[0] == Whole:
		reply = reply[1:]
	case limits == TokensCalendar:
		each, short = groups[0].Layout.Short, true
	}
	if len(reply) != each*done {
		return fmt.Errorf("the script replies %d integers, not %d", len(reply), each*done)
	}
	for i, g := range groups {
		if i >= done || len(groups) > 1 && reply[i*each] == -1 {
			g.Err = ErrRetrySingle
		} else {
			g.Err = decode(g, reply[i*each:(i+1)*each], short)
		}
	}
	return nil
}

// decode sets the states of a group's buckets. In a short reply, each calendar period has one integer.
func decode(g *dispatch.Group, reply []int64, short bool) error {
	for _, n := range reply {
		if n < 0 || n > bucket.MaxUnits {
			return fmt.Errorf("the script replies %d", n)
		}
	}
	g.Found = g.Found[:0]
	for i := range g.Buckets {
		b := &g.Buckets[i]
		if b.Kind == bucket.Tenants {
			g.Found = append(g.Found, bucket.State{})
			switch g.Op.Verb {
			case bucket.Take, bucket.Charge, bucket.Return:
				if !decodeTenants(g, reply) {
					return fmt.Errorf("the script replies %d integers about tenants", len(reply))
				}
			}
			return nil
		}
		s := bucket.State{Level: reply[0]}
		n := g.Layout.Integers[i]
		if short && i < g.Layout.Limits {
			n = 1
		}
		switch {
		case n == 5:
			s.More, s.Wait, s.Reset, s.Mark = reply[1], reply[2], reply[3], reply[4]
		case n == 2:
			s.Wait = reply[1]
		case b.Kind == bucket.Slots:
			s = bucket.SlotsState(reply[0]%placeUnit, reply[0]/othersUnit, reply[0]%othersUnit/placeUnit)
		}
		g.Found, reply = append(g.Found, s), reply[n:]
	}
	if short {
		completeCalendars(g)
	}
	return nil
}

// completeCalendars completes the states of unblocked calendar periods. The script replies only the
// tokens taken.
func completeCalendars(g *dispatch.Group) {
	charges, now := g.Charges, time.Now().UnixMilli()
	for i := range g.Buckets {
		charges = g.Buckets[i].Fits(g.Found[i], charges, g.Op.Tokens(i))
	}
	for i := range g.Buckets {
		b, s := &g.Buckets[i], &g.Found[i]
		if b.Ends == 0 {
			continue
		}
		s.Reset = b.Left(now)
		s.More = s.Reset
		if n := g.Op.Tokens(i); s.Level+charges*n+n > b.Capacity && n <= b.Capacity {
			s.Wait = s.Reset
		}
	}
}
