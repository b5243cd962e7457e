// Package throttle keeps the log short. It knows nothing of what the lines say.
package throttle

import (
	"sync/atomic"
	"time"
)

// Log allows one log line a minute. Its zero value allows the first at once.
type Log struct{ last atomic.Pointer[time.Time] }

// Allow reports whether a line may be written now.
func (l *Log) Allow() bool {
	now, last := time.Now(), l.last.Load()
	return (last == nil || now.Sub(*last) >= time.Minute) && l.last.CompareAndSwap(last, &now)
}
