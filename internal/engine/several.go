package engine

import (
	"context"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/receipt"
	"github.com/ginlimit/ginlimit/internal/redisstore"
	"github.com/ginlimit/ginlimit/internal/rules"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// takeSeveral takes the tokens of each Ask that counts, or of none.
func (e *Engine) takeSeveral(ctx context.Context, asks []Ask, answers []Answer, counted int) error {
	start := time.Now()
	if first := slices.IndexFunc(asks, func(a Ask) bool { return a.Tenant.Name != "" }); first >= 0 {
		return e.takeSharesLast(ctx, start, asks, answers, first)
	}
	if e.redis == nil || counted == 1 || bansOf(asks) > 1 || someAreFree(asks) || !e.redis.Together() {
		return e.takeEach(ctx, start, asks, answers)
	}
	err := e.takeTogether(ctx, asks, answers)
	if err == nil || !redisstore.IsCommandError(err) {
		return err
	}
	// As one of a cluster's node, or of a proxy, unless it is about the key of one.
	err = e.takeEach(ctx, start, asks, answers)
	if err == nil && !slices.ContainsFunc(answers, func(a Answer) bool { return !a.Allowed || a.withoutStore() }) {
		e.redis.Separate()
	}
	return err
}

// takeSharesLast takes the tokens of the Asks before the first one of a tenant, then of one tenant after
// another.
func (e *Engine) takeSharesLast(ctx context.Context, start time.Time, asks []Ask, answers []Answer, first int) error {
	within, cancel := e.within(ctx, start)
	defer cancel()
	for i := range asks {
		asks[i].Settles = true
		answers[i].Decided = false
	}
	return e.allOrNone(within, asks, answers, func(i int) (next int, err error) {
		next = max(first, i+1)
		return next, e.takeNow(within, asks[i:next], answers[i:next])
	})
}

// allOrNone takes of one Ask after another, by a function that takes of one or more and returns which is the next.
// It gives back what was taken if one is denied or fails, and waits for that as long as the context lasts.
func (e *Engine) allOrNone(ctx context.Context, asks []Ask, answers []Answer, take func(int) (int, error)) error {
	if !e.background.Begin() { // Close waits for what is given back
		return errClosed()
	}
	defer e.background.Done()
	for i := 0; i < len(asks); {
		next, err := take(i)
		if err != nil || slices.ContainsFunc(answers[i:next], denies) {
			e.giveBackAll(ctx, asks[:i], answers[:i])
			return err
		}
		i = next
	}
	return nil
}

// denies reports whether an answer denies.
func denies(a Answer) bool { return a.Decided && !a.Allowed }

// takeEach takes of one Ask after another, in no more time than one decision may take.
func (e *Engine) takeEach(ctx context.Context, start time.Time, asks []Ask, answers []Answer) error {
	within, cancel := e.within(ctx, start)
	defer cancel()
	return e.takeInTurn(within, asks, answers, func(ask *Ask, answer *Answer) error {
		return e.take(within, takeOf(ask), ask.N, ask, answer)
	})
}

// takeInTurn decides on one Ask that counts after another, and looks at the rest if one is denied.
func (e *Engine) takeInTurn(ctx context.Context, asks []Ask, answers []Answer,
	take func(*Ask, *Answer) error) error {
	err := e.allOrNone(ctx, asks, answers, func(i int) (int, error) {
		if !answers[i].isCounted() {
			return i + 1, nil
		}
		asks[i].Settles, asks[i].Leases = true, false
		answers[i].Statuses = answers[i].Statuses[:0]
		return i + 1, take(&asks[i], &answers[i])
	})
	if err == nil {
		e.lookAtRest(ctx, asks, answers)
	}
	return err
}

// lookAtRest looks, after an Ask was denied, at the tokens of those that nobody looked at: the client is to hear
// of the longest wait, and is banned by those that deny. If the denial took no call, neither does this. A request
// that waits tries again.
func (e *Engine) lookAtRest(ctx context.Context, asks []Ask, answers []Answer) {
	denied := slices.IndexFunc(answers, denies)
	if denied < 0 || asks[denied].waits() {
		return
	}
	var outage error
	if answers[denied].Source == FromLocal {
		outage = answers[denied].Err
	}
	scope := rules.Tokens
	if e.redis == nil {
		scope = rules.All
	}
	for i := denied + 1; i < len(asks); i++ {
		ask, answer := &asks[i], &answers[i]
		if answer.Decided || ask.N == 0 || !ask.Set.Counts(scope) {
			continue
		}
		err := e.lookAt(ctx, *ask, answer, scope, answers[denied].Source != FromCache, outage)
		if err == nil && denies(*answer) && answers[denied].Source != FromCache {
			_, err = e.banFor(ctx, asks[i:i+1], answers[i:i+1])
		}
		if err != nil {
			answer.reset()
		}
	}
}

// banFor denies one Ask, which was found to be denied, so that it bans: a look does not. It is false if there
// are tokens meanwhile, which are given back. In an outage this process bans, and nobody is asked a second time.
func (e *Engine) banFor(ctx context.Context, ask []Ask, answer []Answer) (denied bool, err error) {
	if ask[0].whichBan() == bucket.NoBans || answer[0].Banned || answer[0].Source == FromOpen {
		return true, nil
	}
	if !e.background.Begin() { // Close waits for what is given back
		return false, errClosed()
	}
	defer e.background.Done()
	ask[0].Settles, ask[0].Leases = true, false
	if answer[0].Source == FromLocal {
		err = e.takeLocally(ctx, &ask[0], &answer[0])
	} else {
		err = e.takeNow(ctx, ask, answer)
	}
	if err != nil || !answer[0].Allowed {
		return true, err
	}
	e.giveBackAll(ctx, ask, answer)
	return false, nil
}

// takeLocally takes the tokens of an Ask on which this process has decided before, without the store.
func (e *Engine) takeLocally(ctx context.Context, ask *Ask, answer *Answer) error {
	c := e.call(takeOf(ask), &ask.Subject, rules.All)
	defer e.release(c)
	answer.reset()
	answer.begin(e, ask, c)
	if c.Op.Bans = ask.whichBan(); ask.attempts() {
		e.beginAttempt(c, ask)
	}
	err := e.fallBack(ctx, c, ask, answer, answer.Err)
	e.endAttempt(c, answer, err)
	return err
}

// bansOf returns how many of the Asks may ban their client. A script knows one ban.
func bansOf(asks []Ask) (n int) {
	for i := range asks {
		if asks[i].Set.Bans() {
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

// isCounted reports whether an Ask has to be decided: its answer is not static.
func (a *Answer) isCounted() bool { return !a.Decided || a.Source != FromStatic }

// takeTogether has one script decide on all Asks. If Redis is late or unavailable, this process
// decides on each. An error that Redis replied is returned.
func (e *Engine) takeTogether(ctx context.Context, asks []Ask, answers []Answer) error {
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
	t.call = e.call(bucket.Op{}, &t.asks[0].Subject, rules.All)
	c := t.call
	wire.Join(c, t.calls)
	outage := e.store.Do(ctx, c)
	switch {
	case outage == nil:
		t.judge(e, c)
		return nil
	case redisstore.IsCommandError(outage):
		t.endAttempts(e, outage)
		return outage
	case e.recall(ctx, c, t.asks, t.calls):
		t.recalled, t.answers[0].Err = true, outage
		return Unavailable(ctx, outage)
	}
	return e.takeInTurn(ctx, asks, answers, func(ask *Ask, answer *Answer) error {
		c := t.calls[slices.Index(t.asks, ask)]
		answer.begin(e, ask, c)
		err := e.fallBack(ctx, c, ask, answer, outage)
		e.endAttempt(c, answer, err)
		answer.allowFree(ask.N)
		return err
	})
}

// together is several Asks that one script decides on, and their answers.
type together struct {
	asks    []*Ask
	answers []*Answer
	calls   []*dispatch.Call // on each alone, for the deny cache and without Redis; they are not sent
	call    *dispatch.Call   // on all of them

	recalled bool     // the calls on each belong to recall
	memory   struct { // for the usual number of Asks
		asks    [4]*Ask
		answers [4]*Answer
		calls   [4]*dispatch.Call
	}
}

// release ends the attempts that have not ended: of Asks after one that was denied without Redis, or all, as a hook
// of the client may end the goroutine.
func (t *together) release(e *Engine) {
	for _, c := range t.calls {
		if !t.recalled {
			e.loseAttempt(c)
			e.release(c)
		}
	}
	if t.call != nil {
		e.release(t.call)
	}
}

// add adds an Ask. It reports whether that is known to be denied.
func (t *together) add(e *Engine, ask *Ask, answer *Answer) (known bool) {
	c := e.call(takeOf(ask), &ask.Subject, rules.All)
	t.asks, t.answers, t.calls = append(t.asks, ask), append(t.answers, answer), append(t.calls, c)
	answer.begin(e, ask, c)
	c.Op.Bans = ask.whichBan()
	if ask.attempts() {
		e.beginAttempt(c, ask)
	}
	if !e.isDenied(c, ask) {
		return false
	}
	answer.judge(c, ask, FromCache)
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
	if charges > 0 && !t.keepsSlots(e, c.Sent) {
		charges = 0
	}
	for i, single := range t.calls {
		ask, answer, found := t.asks[i], t.answers[i], single.States
		_, fits := ask.Set.Fit(rules.All, found, single.Op)
		answer.Decided, answer.Source = true, FromStore
		answer.Verdict, answer.Statuses = ask.Set.JudgeOf(
			rules.All, found, single.Op.N, charges, fits, ask.Report, answer.Statuses)
		answer.receipt.Fill(c.Sent, found)
		single.Sent, single.Received = c.Sent, c.Received
		e.noteBan(single, ask, answer)
		if charges > 0 {
			answer.attempt = single.Attempt.Number
		} else {
			e.endAttempt(single, answer, nil)
		}
		answer.allowFree(ask.N)
		if charges > 0 || !fits {
			e.noteDecision(single, charges > 0)
		}
	}
}

// keepsSlots ends the attempts of calls that Redis has granted. It is false if this process has all slots of one
// already. Then it gives back what Redis took of each.
func (t *together) keepsSlots(e *Engine, sent time.Time) bool {
	kept := 0
	for kept < len(t.calls) {
		t.calls[kept].Sent = sent
		if !e.keepsSlot(t.calls[kept]) {
			break
		}
		kept++
	}
	if kept == len(t.calls) {
		return true
	}
	surplus := make([]Charge, len(t.calls))
	for i, c := range t.calls {
		surplus[i] = Charge{of: t.asks[i].Subject, n: c.Op.N, receipt: receipt.New(e.Timeout)}
		if surplus[i].receipt.Fill(sent, c.States); i >= kept {
			e.loseAttempt(c)
		} else if c.Attempt.Number > 0 {
			e.slots.Release(c.Key, c.Attempt.Number)
			e.wake(c.Key, false)
		}
	}
	e.giveBackSurplus(surplus)
	return false
}

// giveBackAll gives back what was just taken, as another Ask was denied, and waits for that as long
// as the context lasts. What cannot be given back stays taken.
func (e *Engine) giveBackAll(ctx context.Context, asks []Ask, answers []Answer) {
	var taken []*Charge
	for i := range answers {
		answer := &answers[i]
		for j := 0; j < len(answer.Statuses) && answer.Granted > 0; j++ {
			answer.Statuses[j].GiveBack(asks[i].Set, asks[i].N)
		}
		if answer.Decided && answer.Source != FromStatic && answer.Granted > 0 {
			charge := answer.Charge(&asks[i]) // a copy, as this may go on after the caller has left
			taken = append(taken, &charge)
			answer.attempt = 0
		}
	}
	if taken != nil {
		e.background.Detached(ctx, e.Timeout, func(ctx context.Context) {
			for _, charge := range taken {
				_ = e.giveBack(ctx, charge)
			}
		})
	}
}
