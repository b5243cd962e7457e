package ginlimit

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/engine"
	"github.com/ginlimit/ginlimit/internal/rules"
)

// phase is how far a request has come with a policy.
type phase uint8

const (
	undecided phase = iota
	absent          // a dry run that could not decide
	skipped
	settled // its result does not change any more
)

// part is what a request asks of one of its policies, and what was decided.
type part struct {
	policy *Policy
	client string
	keyErr error // why there is no key
	hasKey bool  // it was looked for
	asked  bool  // it has everything that a decision needs
	phase  phase
	n      int // tokens that the request takes
	limits *policyLimits
	ask    *engine.Ask // nil if nobody is asked
	answer *engine.Answer
	result Result
}

// ask prepares the questions of a request. It returns the first policy whose key, cost or limits cannot be
// had, and why. Then only dry runs are asked.
func (s *requestState) ask(c *gin.Context) (failed *part, why failure) {
	for i := range s.parts {
		t := &s.parts[i]
		if t.phase != undecided || failed != nil && !t.policy.dryRun {
			continue
		}
		ask, fault := t.prepare(c, s)
		switch {
		case fault.err == nil:
			s.add(i, ask)
		case t.policy.dryRun:
			t.phase = absent
			t.fail(c, s, fault)
		default:
			failed, why = t, fault
		}
	}
	for i := range s.parts {
		if t := &s.parts[i]; failed != nil && !t.policy.dryRun {
			t.ask, t.answer = nil, nil
		}
	}
	s.arrange()
	return failed, why
}

// prepare returns the question to the policy.
func (t *part) prepare(c *gin.Context, s *requestState) (ask engine.Ask, why failure) {
	p := t.policy
	s.asking = p
	if t.n = 1; p.asks.cost != nil {
		t.n = p.asks.cost(c)
	}
	if err := checkCost(t.n); err != nil {
		return ask, failure{err: err}
	}
	t.findKey(c, s)
	if t.keyErr != nil {
		return ask, failure{err: t.keyErr, origin: fromKeyFunc}
	}
	var err error
	if t.limits, err = p.limitsOf(c.Request.Context(), t.client); err != nil {
		return ask, failure{err: err, origin: fromLimitFunc}
	}
	ask = p.askOf(t.client, t.limits)
	tenant, err := p.tenantOfRequest(c)
	if err != nil {
		return ask, failure{err: err, origin: fromKeyFunc}
	}
	if t.limits.rules.Divided() {
		ask.Tenant = tenant
	}
	ask.N, ask.Report, ask.Settles = int64(t.n), p.report(), p.asks.settle != nil
	if !p.dryRun {
		ask.Queue = p.asks.queue
	}
	t.asked = true
	return ask, failure{}
}

// report returns which statuses a response needs.
func (p *Policy) report() rules.Report {
	switch {
	case p.answers.headerFunc != nil:
		return rules.ReportFull
	case p.answers.headers&RateLimitDraft != 0:
		return rules.ReportEvery
	}
	return rules.ReportDenying
}

// add adds the question to a policy.
func (s *requestState) add(i int, ask engine.Ask) {
	t := &s.parts[i]
	if len(s.parts) == 1 {
		s.asks, s.answers = s.one.asks[:], s.one.answers[:]
		s.asks[0], s.answers[0].Statuses = ask, s.one.statuses[:0]
		t.ask, t.answer = &s.asks[0], &s.answers[0]
		return
	}
	if s.pending == nil {
		s.pending = make([]engine.Ask, len(s.parts))
	}
	s.pending[i] = ask
	t.ask = &s.pending[i]
}

// arrange brings the questions of several policies into the order in which they are decided: together, by
// one tenant after another, and dry runs last.
func (s *requestState) arrange() {
	if s.asks != nil {
		if !s.parts[0].policy.dryRun {
			s.live = 1
		}
		return
	}
	order := make([]*part, 0, len(s.parts))
	for last := range 3 {
		for i := range s.parts {
			t := &s.parts[i]
			if t.ask != nil && last == t.turn() {
				order = append(order, t)
			}
		}
		if last == 1 {
			s.live = len(order)
		}
	}
	s.asked = time.Now()
	s.asks, s.answers = make([]engine.Ask, len(order)), make([]engine.Answer, len(order))
	for i, t := range order {
		s.asks[i] = *t.ask
		t.ask, t.answer = &s.asks[i], &s.answers[i]
		t.ask.Leases = false // also if the others are skipped: those that are not would miss what it holds
		if i < s.live && s.live > 1 && t.n == 0 && t.ask.Failure == engine.FailClosed {
			t.ask.Failure = engine.FailOpen // it passes, and has no say in whether others do
		}
	}
}

// turn is when a policy of several decides.
func (t *part) turn() int {
	switch {
	case t.policy.dryRun:
		return 2
	case t.ask.Tenant.Name != "":
		return 1
	}
	return 0
}

// take decides on the request by the policies in force. It returns the one that has no decision, and why.
func (s *requestState) take(ctx context.Context) (failed *part, why failure) {
	if s.live == 0 {
		return nil, failure{}
	}
	s.request = engine.Request{Asks: s.asks[:s.live], Answers: s.answers[:s.live]}
	err := s.engine().Take(ctx, &s.request)
	if err == nil {
		return nil, failure{}
	}
	for i := range s.parts {
		t := &s.parts[i]
		if t.ask == nil || t.policy.dryRun || t.answer.Decided {
			continue
		}
		if failed == nil || failed.n == 0 && t.n > 0 {
			failed = t
		}
		if t.answer.Err != nil && t.n > 0 {
			failed = t
			break
		}
	}
	if failed == nil { // each was decided, and the limiter was closed
		failed = s.partOf(0)
	}
	return failed, failure{err: err, store: failed.answer.Err}
}

// tryDryRuns has each policy in a dry run decide, in no more time than the request has.
func (s *requestState) tryDryRuns(c *gin.Context) {
	ctx := c.Request.Context()
	for i := s.live; i < len(s.asks); i++ {
		t := s.partOf(i)
		r := engine.Request{Asks: s.asks[i : i+1], Answers: s.answers[i : i+1]}
		if len(s.asks) > 1 {
			r.Began = s.asked.Add(s.waited())
		}
		if err := s.engine().Take(ctx, &r); err != nil {
			t.phase = absent
			t.fail(c, s, failure{err: err, store: t.answer.Err})
		}
	}
}

// partOf returns the part of a question.
func (s *requestState) partOf(ask int) *part {
	for i := range s.parts {
		if s.parts[i].ask == &s.asks[ask] {
			return &s.parts[i]
		}
	}
	return nil
}

// waited returns for how long the request was in lines.
func (s *requestState) waited() (all time.Duration) {
	for i := range s.answers[:s.live] {
		all += s.answers[i].Waited
	}
	return all
}

// judge takes the results from the answers, and tells observers: of a denied request only the denials, of a
// failed request only what dry runs decided.
func (s *requestState) judge(ctx context.Context, failed bool) {
	denied := s.isDenied()
	for i := range s.parts {
		t := &s.parts[i]
		if t.phase != undecided || t.answer == nil || !t.answer.Decided || failed && !t.policy.dryRun {
			continue
		}
		p, a := t.policy, t.answer
		t.phase, t.result = settled, t.limits.result(p.limiter.engine, a)
		p.warnBurst(ctx, a, t.result)
		if p.limiter.observers != nil && (p.dryRun || t.result.Allowed == !denied) {
			s.record(ctx, t, outcomeOf(t.result, nil), t.result.Allowed, failure{store: a.Err})
		}
	}
}

// record has observers know what a policy decided.
func (s *requestState) record(ctx context.Context, t *part, outcome Outcome, allowed bool, why failure) {
	p, r := t.policy, t.result
	if p.limiter.observers == nil {
		return
	}
	if outcome == OutcomeSkipped || outcome == OutcomeFailed {
		r = Result{}
	}
	o := observation{p.limiter.observers, s.began, Event{Name: p.name, DryRun: p.dryRun}}
	if t.answer != nil {
		o.event.Waited = t.answer.Waited
	}
	o.record(ctx, outcome, t.n, allowed, r, why)
}

// isDenied reports whether a policy in force denies.
func (s *requestState) isDenied() bool {
	for i := range s.answers[:s.live] {
		if a := &s.answers[i]; a.Decided && !a.Allowed {
			return true
		}
	}
	return false
}

// denial returns the part that denies for longest, or nil if the request is allowed.
func (s *requestState) denial() (longest *part) {
	for i := range s.parts {
		t := &s.parts[i]
		if t.denies() && (longest == nil || t.result.closerThan(longest.result)) {
			longest = t
		}
	}
	return longest
}

// denies reports whether the request is denied by the policy.
func (t *part) denies() bool { return t.phase == settled && !t.result.Allowed && !t.policy.dryRun }

// hasSlots reports whether the request holds a slot of any key.
func (s *requestState) hasSlots() bool {
	for i := range s.answers {
		if s.answers[i].HasSlot() {
			return true
		}
	}
	return false
}

// release gives the slots of the request back.
func (s *requestState) release() {
	for i := range s.answers {
		if s.answers[i].HasSlot() {
			charge := s.answers[i].Charge(&s.asks[i])
			s.engine().Release(&charge)
		}
	}
}

// settles reports whether what the request took is settled once it was served.
func (s *requestState) settles() bool {
	for i := range s.parts {
		if s.parts[i].settles() {
			return true
		}
	}
	return false
}

func (t *part) settles() bool {
	return t.policy.asks.settle != nil && t.answer != nil && t.result.Allowed
}

// serveSettling serves the request, and has what was taken for it become what it really took.
func (s *requestState) serveSettling(c *gin.Context) {
	served := false
	var taken []engine.Charge
	var actual []int64
	defer func() { // all at the same time; not recover, which would hide where a panic came from
		ctx := context.WithoutCancel(c.Request.Context()) // its client may be gone
		for _, err := range s.engine().Settle(ctx, actual, taken) {
			_ = c.Error(err) // for the application's log; it returns what it was given
		}
	}()
	for i := range slices.Backward(s.parts) { // what is deferred last is done first
		t := &s.parts[i]
		if !t.settles() {
			continue
		}
		defer func() {
			if !served && !c.Writer.Written() {
				c.Status(http.StatusInternalServerError)
			}
			n := t.policy.asks.settle(c, t.n)
			if n < 0 {
				_ = c.Error(fmt.Errorf("%w: settled with %d tokens; want at least 0", ErrInvalidArgument, n))
				return
			}
			if t.answer.Source != engine.FromStatic {
				taken, actual = append(taken, t.answer.Charge(t.ask)), append(actual, int64(n))
			}
		}()
	}
	c.Next()
	served = true
}
