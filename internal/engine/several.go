package engine

import (
	"context"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// takeSeveral takes n tokens of each Ask that counts, or of none.
func (e *Engine) takeSeveral(ctx context.Context, n int64, asks []Ask, answers []Answer, counted int) error {
	if e.redis == nil || counted == 1 || guarded(asks) || !e.redis.Together() {
		return e.takeEach(ctx, time.Now(), n, asks, answers)
	}
	start := time.Now()
	err := e.takeTogether(ctx, n, asks, answers)
	if err == nil || !redisstore.IsCommandError(err) {
		return err
	}
	// As one of a cluster's node, or of a proxy.
	err = e.takeEach(ctx, start, n, asks, answers)
	if err == nil && !anyWithoutStore(answers) {
		e.redis.Separate()
	}
	return err
}

// takeEach takes of one Ask after another, in no more time than one decision may take.
func (e *Engine) takeEach(ctx context.Context, start time.Time, n int64, asks []Ask, answers []Answer) error {
	within, cancel := e.within(ctx, start)
	defer cancel()
	return e.takeInTurn(within, n, asks, answers, func(ask *Ask, answer *Answer) error {
		return e.take(ctx, within, takeAll(n, ask), n, ask, answer)
	})
}

// within returns a context that ends when a decision that began at start has taken long enough.
func (e *Engine) within(ctx context.Context, start time.Time) (context.Context, context.CancelFunc) {
	if e.redis == nil {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, start.Add(e.Timeout))
}

func guarded(asks []Ask) bool {
	for i := range asks {
		if asks[i].Scope != rules.Limits && asks[i].Set.Guarded() {
			return true
		}
	}
	return false
}

func anyWithoutStore(answers []Answer) bool {
	for i := range answers {
		if answers[i].withoutStore() {
			return true
		}
	}
	return false
}

// isCounted reports whether an Ask has to be decided: its answer is not static.
func (a *Answer) isCounted() bool { return !a.Decided || a.Source != FromStatic }

// takeTogether has one script decide on all Asks. If Redis is late or unavailable, this process
// decides on each. An error that Redis replied is returned.
func (e *Engine) takeTogether(ctx context.Context, n int64, asks []Ask, answers []Answer) error {
	var t together
	defer t.release(e)
	known := false
	for i := range asks {
		if answers[i].isCounted() {
			known = t.add(e, n, &asks[i], &answers[i]) || known
		}
	}
	if known {
		return nil
	}
	c := t.joint(e, n)
	err := e.store.Do(ctx, c)
	switch {
	case err == nil:
		t.judge(e, n, c)
		return nil
	case redisstore.IsCommandError(err):
		return err
	}
	return e.takeInTurn(ctx, n, asks, answers, func(ask *Ask, answer *Answer) error {
		c := e.call(takeAll(n, ask), ask, ask.Scope)
		defer e.release(c)
		answer.begin(e, ask, c)
		err := e.fallBack(ctx, c, c.Op, ask, answer, err)
		answer.allowFree(n)
		return err
	})
}

// together is several Asks that one script decides on, and their answers.
type together struct {
	asks    []*Ask
	answers []*Answer
	calls   []*dispatch.Call // on each alone, for the deny cache
	call    *dispatch.Call   // on all of them
}

func (t *together) release(e *Engine) {
	for _, c := range t.calls {
		e.release(c)
	}
	if t.call != nil {
		e.release(t.call)
	}
}

// add adds an Ask. It reports whether that is known to be denied.
func (t *together) add(e *Engine, n int64, ask *Ask, answer *Answer) (known bool) {
	c := e.call(takeAll(n, ask), ask, ask.Scope)
	t.asks, t.answers, t.calls = append(t.asks, ask), append(t.answers, answer), append(t.calls, c)
	answer.begin(e, ask, c)
	if !e.isDenied(c, ask) {
		return false
	}
	answer.judge(c, c.Op, ask, FromCache)
	return true
}

// joint returns the call on all Asks.
func (t *together) joint(e *Engine, n int64) *dispatch.Call {
	var all []bucket.Bucket
	charges := int64(1)
	for i, c := range t.calls {
		all = append(all, c.Buckets...)
		charges = min(charges, takeAll(n, t.asks[i]).Charges)
	}
	op := bucket.Op{Verb: bucket.Take, Charges: charges, N: max(1, n)}
	t.call = e.call(op, t.asks[0], t.asks[0].Scope)
	c := t.call
	key, hash := c.Key, c.Hash
	c.Reset(op, all)
	c.Key, c.Hash = key, hash
	from := len(t.calls[0].Buckets)
	for _, other := range t.calls[1:] {
		c.AddKey(other.Key, other.Hash, from) // a copy: other may be used again before c is answered
		from += len(other.Buckets)
	}
	return c
}

// judge fills in the answers from the states that the script found.
func (t *together) judge(e *Engine, n int64, c *dispatch.Call) {
	charges, allowed := c.Op.Charges, true
	for i := range c.Buckets {
		charges = c.Buckets[i].Fit(c.States[i].Level, charges, c.Op.N)
		allowed = allowed && c.Buckets[i].Fit(c.States[i].Level, 1, c.Op.N) == 1
	}
	from := 0
	for i, single := range t.calls {
		ask, answer := t.asks[i], t.answers[i]
		found := c.States[from : from+len(single.States)]
		from += len(found)
		answer.Decided, answer.Source = true, FromStore
		answer.Verdict, answer.Statuses = ask.Set.JudgeOf(
			ask.Scope, found, c.Op.N, charges, allowed, ask.Report, answer.Statuses)
		answer.receipt.Fill(c.Sent, found)
		answer.allowFree(n)
		copy(single.States, found)
		single.Sent, single.Received = c.Sent, c.Received
		if charges > 0 {
			e.denied.Drop(single.Key, single.Hash)
		} else if _, fits := ask.Set.Fit(ask.Scope, found, single.Op); !fits {
			e.remember(single)
		}
	}
}

// takeInTurn decides on one Ask after another, and gives back what was taken if one is denied or
// fails. It waits for that as long as the context lasts.
func (e *Engine) takeInTurn(ctx context.Context, n int64, asks []Ask, answers []Answer,
	take func(*Ask, *Answer) error) error {
	if !e.background.Begin() {
		return errClosed()
	}
	defer e.background.Done()
	for i := range asks {
		if !answers[i].isCounted() {
			continue
		}
		asks[i].Settles, asks[i].Leases = true, false
		answers[i].Statuses = answers[i].Statuses[:0]
		err := take(&asks[i], &answers[i])
		if err != nil || !answers[i].Allowed {
			e.giveBackAll(ctx, n, asks[:i], answers[:i])
			return err
		}
	}
	return nil
}

// giveBackAll gives back what was just taken, as another Ask was denied, and waits for that as long
// as the context lasts. What cannot be given back stays taken.
func (e *Engine) giveBackAll(ctx context.Context, n int64, asks []Ask, answers []Answer) {
	var taken []*Charge
	for i := range answers {
		answer := &answers[i]
		for j := range answer.Statuses {
			answer.Statuses[j].GiveBack(asks[i].Set, n)
		}
		if answer.Decided && answer.Source != FromStatic && (answer.Granted > 0 || answer.HasSlot()) {
			charge := answer.Charge(&asks[i]) // a copy, as this may go on after the caller has left
			taken = append(taken, &charge)
			answer.attempt = 0
		}
	}
	if taken == nil {
		return
	}
	e.background.Detached(ctx, e.Timeout, func(ctx context.Context) {
		for _, charge := range taken {
			_ = e.GiveBack(ctx, charge)
		}
	})
}
