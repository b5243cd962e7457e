package engine

import (
	"context"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/inflight"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// takeSeveral takes the tokens of each Ask that counts, or of none.
func (e *Engine) takeSeveral(ctx, within context.Context, asks []Ask, answers []Answer, counted int) error {
	start := time.Now()
	if first := slices.IndexFunc(asks, func(a Ask) bool { return a.Tenant.Name != "" }); first >= 0 {
		return e.takeSharesLast(ctx, within, start, asks, answers, first)
	}
	if e.redis == nil || counted == 1 || bansOf(asks) > 1 || someAreFree(asks) || !e.redis.Together() {
		return e.takeEach(ctx, within, start, asks, answers)
	}
	err := e.takeTogether(ctx, within, asks, answers)
	if err == nil || !redisstore.IsCommandError(err) {
		return err
	}
	// As one of a cluster's node, or of a proxy.
	err = e.takeEach(ctx, within, start, asks, answers)
	if err == nil && !anyWithoutStore(answers) {
		e.redis.Separate()
	}
	return err
}

// takeSharesLast takes the tokens of the Asks before the first one of a tenant, then of one tenant after
// another.
func (e *Engine) takeSharesLast(ctx, within context.Context, start time.Time, asks []Ask, answers []Answer,
	first int) error {
	if !e.background.Begin() { // what the first ones took may have to be given back
		return errClosed()
	}
	defer e.background.Done()
	within, cancel := e.within(within, start)
	defer cancel()
	for i := range asks {
		asks[i].Settles = true
	}
	err := e.takeNow(ctx, within, asks[:first], answers[:first])
	for i := range answers[first:] {
		answers[first+i].Decided = false
	}
	if err != nil || denies(answers[:first]) {
		return err
	}
	for i := first; i < len(asks); i++ {
		err := e.takeOne(ctx, within, &asks[i], &answers[i])
		if err != nil || !answers[i].Allowed {
			e.giveBackAll(within, asks[:i], answers[:i])
			return err
		}
	}
	return nil
}

// denies reports whether one of the answers denies.
func denies(answers []Answer) bool {
	return slices.ContainsFunc(answers, func(a Answer) bool { return a.Decided && !a.Allowed })
}

// takeEach takes of one Ask after another, in no more time than one decision may take.
func (e *Engine) takeEach(ctx, within context.Context, start time.Time, asks []Ask, answers []Answer) error {
	within, cancel := e.within(within, start)
	defer cancel()
	err := e.takeInTurn(within, asks, answers, func(ask *Ask, answer *Answer) error {
		return e.take(ctx, within, takeAll(ask), ask.N, ask, answer)
	})
	if err == nil && e.redis != nil {
		e.lookAtRest(within, asks, answers)
	}
	return err
}

// lookAtRest looks, after an Ask was denied, at the tokens of those that nobody looked at: the client is to hear
// of the longest wait. If the denial took no call, neither does this. A request that waits tries again.
func (e *Engine) lookAtRest(ctx context.Context, asks []Ask, answers []Answer) {
	denied := slices.IndexFunc(answers, func(a Answer) bool { return a.Decided && !a.Allowed })
	looks := denied >= 0 && !asks[denied].Waits
	for i := denied + 1; looks && i < len(asks); i++ {
		ask, answer := &asks[i], &answers[i]
		if !answer.isCounted() || ask.N == 0 || !ask.Set.Counts(rules.Tokens) {
			continue
		}
		var outage error
		if answers[denied].Source == FromLocal {
			outage = answers[denied].Err
		}
		if err := e.lookAt(ctx, ctx, *ask, answer, answers[denied].Source != FromCache, outage); err != nil {
			answer.reset()
		}
	}
}

// within returns a context that ends when a decision that began at start has taken long enough.
func (e *Engine) within(ctx context.Context, start time.Time) (context.Context, context.CancelFunc) {
	if e.redis == nil {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, start.Add(e.Timeout))
}

// bansOf returns how many of the Asks may ban their client. A script knows one ban.
func bansOf(asks []Ask) (n int) {
	for i := range asks {
		if asks[i].bans() {
			n++
		}
	}
	return n
}

// someAreFree reports whether some Asks want no token, and others do. One script only looks, or takes
// of each.
func someAreFree(asks []Ask) bool {
	return slices.ContainsFunc(asks, func(a Ask) bool { return (a.N == 0) != (asks[0].N == 0) })
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
func (e *Engine) takeTogether(ctx, within context.Context, asks []Ask, answers []Answer) error {
	if !e.background.Begin() { // Close reports how attempts to take a slot end
		return errClosed()
	}
	defer e.background.Done()
	var t together
	t.asks, t.answers, t.calls = t.memory.asks[:0], t.memory.answers[:0], t.memory.calls[:0]
	defer t.release(e)
	known := false
	for i := range asks {
		if answers[i].isCounted() {
			known = t.add(e, &asks[i], &answers[i]) || known
		}
	}
	if known {
		t.endAttempts(e, nil)
		return nil
	}
	t.call = e.call(bucket.Op{}, t.asks[0], t.asks[0].Scope)
	c := t.call
	wire.Join(c, t.calls)
	outage := e.store.Do(within, c)
	switch {
	case outage == nil:
		t.judge(e, c)
		return nil
	case redisstore.IsCommandError(outage):
		t.endAttempts(e, outage)
		return outage
	}
	err := e.takeInTurn(ctx, asks, answers, func(ask *Ask, answer *Answer) error {
		c := t.calls[slices.Index(t.asks, ask)]
		answer.begin(e, ask, c)
		err := e.fallBack(ctx, c, c.Op, ask, answer, outage)
		e.endAttempt(c, answer, err)
		answer.allowFree(ask.N)
		return err
	})
	if err == nil {
		e.lookAtRest(ctx, asks, answers)
	}
	return err
}

// together is several Asks that one script decides on, and their answers.
type together struct {
	asks    []*Ask
	answers []*Answer
	calls   []*dispatch.Call // on each alone, for the deny cache and without Redis; they are not sent
	call    *dispatch.Call   // on all of them
	memory  struct {         // for the usual number of Asks
		asks    [4]*Ask
		answers [4]*Answer
		calls   [4]*dispatch.Call
	}
}

// release ends the attempts that have not ended: of Asks after one that was denied without Redis, or all, as a hook
// of the client may end the goroutine.
func (t *together) release(e *Engine) {
	for _, c := range t.calls {
		if c.Attempt.Number > 0 {
			e.slots.End(c.Key, c.Attempt.Number, inflight.Lost)
		}
		e.release(c)
	}
	if t.call != nil {
		e.release(t.call)
	}
}

// add adds an Ask. It reports whether that is known to be denied.
func (t *together) add(e *Engine, ask *Ask, answer *Answer) (known bool) {
	c := e.call(takeAll(ask), ask, ask.Scope)
	t.asks, t.answers, t.calls = append(t.asks, ask), append(t.answers, answer), append(t.calls, c)
	answer.begin(e, ask, c)
	if ask.bans() {
		c.Op.Bans = ask.Bans
	}
	if ask.attempts() {
		e.beginAttempt(c, ask)
	}
	if !e.isDenied(c, ask) {
		return false
	}
	answer.judge(c, c.Op, ask, FromCache)
	return true
}

// endAttempts ends the attempts to take slots.
func (t *together) endAttempts(e *Engine, err error) {
	for i, c := range t.calls {
		e.endAttempt(c, t.answers[i], err)
	}
}

// judge fills in the answers from the states that the script found.
func (t *together) judge(e *Engine, c *dispatch.Call) {
	charges := c.Op.Charges
	for i := range c.Buckets {
		charges = c.Buckets[i].Fits(c.States[i], charges, c.Op.Tokens(i))
	}
	wire.Split(c, t.calls)
	for i, single := range t.calls {
		ask, answer, found := t.asks[i], t.answers[i], single.States
		_, fits := ask.Set.Fit(ask.Scope, found, single.Op)
		answer.Decided, answer.Source = true, FromStore
		answer.Verdict, answer.Statuses = ask.Set.JudgeOf(
			ask.Scope, found, single.Op.N, charges, fits, ask.Report, answer.Statuses)
		answer.receipt.Fill(c.Sent, found)
		single.Sent, single.Received = c.Sent, c.Received
		e.noteBan(single, ask, answer)
		e.endAttempt(single, answer, nil)
		answer.allowFree(ask.N)
		if charges > 0 {
			e.forgetDenial(single)
		} else if !fits {
			e.remember(single)
		}
	}
}

// takeInTurn decides on one Ask after another, and gives back what was taken if one is denied or
// fails. It waits for that as long as the context lasts.
func (e *Engine) takeInTurn(ctx context.Context, asks []Ask, answers []Answer,
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
			e.giveBackAll(ctx, asks[:i], answers[:i])
			if err == nil && e.redis == nil {
				e.lookAtAll(ctx, asks[i+1:], answers[i+1:])
			}
			return err
		}
	}
	return nil
}

// lookAtAll fills in the answers of Asks that nobody looked at, as another one was denied. It takes nothing, and a
// denial bans as it would alone. In this process nothing can fail.
func (e *Engine) lookAtAll(ctx context.Context, asks []Ask, answers []Answer) {
	for i := range asks {
		ask, answer := asks[i], &answers[i]
		if !answer.isCounted() || ask.N == 0 {
			continue
		}
		ask.Settles, ask.Leases = true, false
		_ = e.take(ctx, ctx, bucket.Peek(ask.N), ask.N, &ask, answer)
		if !answer.Allowed && ask.bans() && ask.Bans != bucket.NoBans {
			answer.Statuses = answer.Statuses[:0]
			_ = e.take(ctx, ctx, takeAll(&ask), ask.N, &ask, answer)
			e.giveBackAll(ctx, asks[i:i+1], answers[i:i+1]) // what came back meanwhile
		}
	}
}

// giveBackAll gives back what was just taken, as another Ask was denied, and waits for that as long
// as the context lasts. What cannot be given back stays taken.
func (e *Engine) giveBackAll(ctx context.Context, asks []Ask, answers []Answer) {
	var taken []*Charge
	for i := range answers {
		answer := &answers[i]
		for j := range answer.Statuses {
			answer.Statuses[j].GiveBack(asks[i].Set, asks[i].N)
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
