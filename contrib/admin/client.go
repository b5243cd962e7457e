package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

// clientBody is the page of a client under a policy.
type clientBody struct {
	Policies []string // to choose from
	Policy   string   // as the form had it
	Client   string
	Hash     string
	Own      string // limits that only the application knows
	Tenant   string
	Missing  string // what the form lacks

	Variants []ginlimit.PolicyInfo
	Info     ginlimit.PolicyInfo // the one of them that is shown
	Target   *operate.Target     // nil before somebody is looked up
	Results  []gauge
	Allowed  bool
	DryRun   bool
	Holds    operate.Holds
	Unread   bool   // Redis does not say what Holds are
	NoBlock  string // why it cannot be blocked; else ""
	Holders  []operate.Holder
	Slots    bool // it may hold some
}

// gauge is a limit of a client, and what is left of it.
type gauge struct {
	ginlimit.Result
	Size      int // tokens, or slots; 0 is unlimited
	Width     int // of the bar, in a hundred
	Unlimited bool
}

// Never reports that no waiting helps.
func (g gauge) Never() bool { return g.RetryAfter == ginlimit.Never }

// gaugeOf returns the bar of a limit.
func gaugeOf(r ginlimit.Result) gauge {
	g := gauge{Result: r, Size: max(r.Limit.Rate, r.Limit.Burst), Unlimited: r.Limit == ginlimit.Unlimited()}
	if r.Limit.InFlight > 0 {
		g.Size = r.Limit.InFlight
	}
	if r.Limit.Algorithm == ginlimit.TokenBucket && r.Limit.Burst > 0 {
		g.Size = r.Limit.Burst
	}
	if g.Size > 0 {
		g.Width = min(100, 100*max(r.Remaining, 0)/g.Size)
	}
	return g
}

// client is the form that finds a client, and the page of the client that it names.
func (h *handler) client(v *visit) error {
	if v.r.Method != "POST" {
		return h.showForm(v, &clientBody{Policy: v.r.FormValue("policy")})
	}
	body, err := h.find(v)
	if err != nil {
		return h.incomplete(v, body, err)
	}
	return h.showClient(v, body)
}

// incomplete shows the form again, with what is wrong in it, or returns another error.
func (h *handler) incomplete(v *visit, body *clientBody, err error) error {
	if !isMistake(err) {
		return err
	}
	body.Missing, v.status = said(err), statusOf(err)
	return h.showForm(v, body)
}

// showForm shows the form that finds a client.
func (h *handler) showForm(v *visit, body *clientBody) error {
	all, err := v.Policies(v.ctx)
	v.failed("The policies cannot be read.", err)
	for _, r := range rowsOf(all, "") {
		body.Policies = append(body.Policies, r.Name)
	}
	body.Target = nil
	return v.show("client", "A client", body)
}

// find returns the client that the form of a request names.
func (h *handler) find(v *visit) (*clientBody, error) {
	client, err := v.clientOf()
	body := &clientBody{
		Policy: v.r.PostFormValue("policy"), Client: client, Hash: v.r.PostFormValue("hash"),
		Own: v.text("own"), Tenant: v.r.PostFormValue("tenant"),
	}
	if err != nil {
		return body, err
	}
	if err := body.read(v); err != nil {
		return body, err
	}
	of, err := v.Client(body.Info, client, v.hashOf())
	if err != nil {
		return body, err
	}
	limits, err := limitsOf(body.Own)
	if err != nil {
		return body, err
	}
	target, err := v.Target(v.ctx, body.Info, of, limits)
	body.Target = &target
	return body, err
}

// read reads what processes serve of the policy.
func (b *clientBody) read(v *visit) (err error) {
	if b.Variants, err = v.Operator.Variants(v.ctx, b.Policy); err == nil {
		b.Info, _ = operate.LastSeen(b.Variants)
	}
	return err
}

// status reads what the client has left.
func (b *clientBody) status(v *visit) error {
	results, err := v.Status(v.ctx, *b.Target, b.Tenant)
	for _, r := range results {
		b.Results = append(b.Results, gaugeOf(r))
	}
	return err
}

// Others says what other processes serve, or "".
func (b *clientBody) Others() string {
	text := func(p ginlimit.PolicyInfo) string {
		return strings.TrimSpace(limitsText(p) + " " + operate.OptionsText(p))
	}
	processes, texts := map[string]int{}, []string{}
	for _, p := range b.Variants {
		processes[text(p)] += p.Processes
	}
	own := text(b.Info)
	for name, n := range processes {
		if name != own {
			texts = append(texts, fmt.Sprintf("%s (%s)", name, operate.Plural(n, "process", "processes")))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	slices.Sort(texts)
	return fmt.Sprintf("Processes serve %d variants of the policy: these are the limits of %s (%s); others serve %s.",
		len(processes), own, operate.Plural(processes[own], "process", "processes"),
		strings.Join(texts, ", "))
}

// showClient shows what a client has left.
func (h *handler) showClient(v *visit, body *clientBody) error {
	err := body.status(v)
	if err != nil {
		return h.incomplete(v, body, err)
	}
	if err := v.CheckBlock(*body.Target, time.Minute); err != nil {
		body.NoBlock = said(err)
	}
	body.Holds, err = bounded(v, func(ctx context.Context) (operate.Holds, error) { return v.Holds(ctx, *body.Target) })
	body.Unread = v.failed("Whether the client is blocked cannot be read.", err)
	body.DryRun = operate.IsDryRun(body.Info)
	body.Allowed = !slices.ContainsFunc(body.Results, func(g gauge) bool { return !g.Allowed })
	isSlots := func(g gauge) bool { return g.Limit.InFlight > 0 }
	body.Slots = slices.ContainsFunc(body.Results, isSlots) || operate.HasFunction(body.Info)
	if body.Slots {
		body.Holders, err = bounded(v, func(ctx context.Context) ([]operate.Holder, error) {
			return v.Slots(ctx, body.Info, body.Target.Client)
		})
		v.failed("Who holds the client's slots cannot be read.", err)
	}
	return v.show("client", "Client "+shown(body.Target.Client.Key), body)
}

// HashField returns the hash field of a form about the client.
func (b *clientBody) HashField() string {
	if b.Target.Client.Hashed {
		return "yes"
	}
	return "no"
}

// Denied returns why the client is denied.
func (b *clientBody) Denied() string {
	var longest *gauge
	for i, g := range b.Results {
		if !g.Allowed && (longest == nil || g.RetryAfter > longest.RetryAfter) {
			longest = &b.Results[i]
		}
	}
	switch {
	case longest == nil:
		return ""
	case longest.RetryAfter == ginlimit.Never:
		return "for as long as the limit is " + longest.Limit.String()
	case longest.Limit.InFlight > 0 && longest.Cause == ginlimit.CauseInFlight:
		return "until one of its requests has ended: all slots are taken"
	case longest.Cause == ginlimit.CauseBan:
		return "by a ban, for " + operate.Span(longest.RetryAfter)
	case !b.Holds.Block.IsZero():
		return "for " + operate.Span(longest.RetryAfter) + ": blocked until " + operate.TimeText(b.Holds.Block)
	case operate.IsHeld(longest.Result) && !b.Unread:
		return "for " + operate.Span(longest.RetryAfter) + ", " + operate.OverdrawnText
	}
	return "for " + operate.Span(longest.RetryAfter)
}
