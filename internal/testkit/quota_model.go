package testkit

import "github.com/ginlimit/ginlimit"

// ModelQuota is a calendar quota in one period as one would define it. When that ends, its caller knows.
type ModelQuota struct {
	Used    int64
	Blocked int64 // until, in milliseconds
}

// Take is AllowN with least = n, AllowUpTo with least = 1, and Peek with n = 0. Its waits are those of a block;
// retry and reset report whether they last until the end of the period too.
func (q *ModelQuota) Take(now, n, least int64, l ginlimit.Limit) (r ginlimit.Result, retry, reset bool) {
	room, blocked := max(0, int64(l.Rate)-q.Used), Millis(max(0, q.Blocked-now))
	if blocked > 0 {
		room = 0
	}
	r = ginlimit.Result{Allowed: room >= least, Limit: l, ResetAfter: blocked}
	if r.Allowed {
		r.Granted = int(min(n, room))
	}
	q.Used += int64(r.Granted)
	r.Remaining = int(room) - r.Granted
	switch {
	case r.Allowed:
	case least > int64(l.Rate):
		r.RetryAfter = ginlimit.Never
	default:
		r.RetryAfter, retry = blocked, q.Used+least > int64(l.Rate)
	}
	return r, retry, q.Used > 0
}

// Refund gives n tokens back.
func (q *ModelQuota) Refund(n int64) { q.Used = max(0, q.Used-n) }

// Block denies every token for some milliseconds.
func (q *ModelQuota) Block(now, ms int64) { q.Blocked = max(q.Blocked, now+ms) }
