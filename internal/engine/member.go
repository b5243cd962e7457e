package engine

import (
	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// member is one of the Asks of a decision whose answer is not static.
type member struct {
	ask    *Ask
	answer *Answer
	call   *dispatch.Call // on this Ask alone
	known  bool           // the deny cache denies it, or will
	fits   bool           // one charge fits what the store found
	of     *member        // whose tokens it looks at, or nil
}

// free reports whether an Ask wants no token, so that it denies nothing.
func (m *member) free() bool { return m.ask.N == 0 }

// takeBack returns what was taken for a member, which is to be given back, as the request is denied. It is a copy: the
// caller may leave before that.
func (m *member) takeBack() Charge {
	charge := m.answer.Charge(m.ask)
	charge.tried = m.ask.waits() && m.ask.again
	m.answer.attempt = 0
	return charge
}
