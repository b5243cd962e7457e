package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

// plan is a change that somebody wants, before and after it is confirmed.
type plan struct {
	*clientBody
	Do       string // block, reset, override or end
	Note     string
	For      time.Duration // of a block
	Until    time.Time     // of a block or an override
	Limits   []ginlimit.Limit
	Sentence string
	Fields   map[string]string // of the form that confirms it
	Everyone bool              // all clients of the policy
}

const maxNote = 256 // bytes, as of an override

// planOf returns the change that the form of a request wants, or what is wrong with it.
func (h *handler) planOf(v *visit) (p *plan, err error) {
	if !v.may {
		return nil, errForbidden
	}
	p = &plan{Do: v.r.PostFormValue("do"), Note: v.text("note"), Everyone: v.r.PostFormValue("all") == "yes"}
	if len(p.Note) > maxNote || strings.ContainsFunc(p.Note, unicode.IsControl) {
		return p, mistake("the note is one line of at most %d bytes", maxNote)
	}
	if p.clientBody, err = h.subject(v, p); err != nil {
		return p, err
	}
	switch p.Do {
	case "block":
		err = p.block(v)
	case "reset":
		p.reset(v)
	case "override":
		err = p.override(v)
	case "end":
		err = p.end(v)
	default:
		err = mistake("there is no such change")
	}
	return p, err
}

func mistake(format string, args ...any) error {
	return &operate.Fault{Err: fmt.Errorf(format, args...)}
}

// subject returns the client, or the policy, that a change is about. What ends may be of a policy that has gone.
func (h *handler) subject(v *visit, p *plan) (body *clientBody, err error) {
	ends := p.Do == "end"
	switch {
	case p.Everyone && !ends && p.Do != "override":
		return nil, mistake("this is for one client")
	case !p.Everyone && !ends:
		return h.subjectClient(v, p)
	}
	body = &clientBody{Policy: v.r.PostFormValue("policy"), Target: &operate.Target{}}
	if err = body.read(v); err != nil && !(ends && isMistake(err)) {
		return body, err
	}
	if p.Everyone {
		all, err := v.Overrides(v.ctx)
		if err == nil {
			body.Target.Override, err = v.ForAll(all, body.Policy)
		}
		return body, err
	}
	body.Client, err = v.clientOf() // as Redis has it
	if err == nil && body.Client == "" {
		err = mistake("the client is empty")
	}
	body.Target.Client = operate.Client{Key: body.Client, Hashed: v.hashOf() == operate.IsHash}
	return body, err
}

// subjectClient returns a client. An override needs none of its limits.
func (h *handler) subjectClient(v *visit, p *plan) (*clientBody, error) {
	body, err := h.find(v)
	if p.Do != "override" {
		return body, err
	}
	fault := (*operate.Fault)(nil)
	switch {
	case err == nil:
		if err = body.status(v); err != nil && !isMistake(err) {
			return body, err
		}
	case !errors.As(err, &fault) || fault.Need != operate.NeedsLimits:
		return body, err
	}
	return body, operate.Overridable(body.Info, body.Target.Client)
}

// whom returns who a change is about, in a sentence.
func (p *plan) whom() string {
	if p.Everyone {
		return fmt.Sprintf("all clients of policy %s without an override of their own", shown(p.Policy))
	}
	return fmt.Sprintf("client %s under policy %s", shown(p.Target.Client.Key), shown(p.Policy))
}

func (p *plan) block(v *visit) (err error) {
	if p.For, err = operate.ParseSpan(v.text("for")); err != nil {
		return err
	}
	p.Until = time.Now().Add(p.For)
	p.Fields = map[string]string{"for": v.text("for")}
	p.Sentence = fmt.Sprintf("Deny %s everything for %s, until %s, in every process at once.", p.whom(),
		operate.Span(p.For), operate.TimeText(p.Until)) + p.elsewhere()
	return v.CheckBlock(*p.Target, p.For)
}

func (p *plan) reset(v *visit) {
	text, ends := p.found(v)
	p.Sentence = "Fill the buckets of " + p.whom() + strings.TrimSuffix(text, ",")
	if ends {
		p.Sentence = "End the block and the ban of " + p.whom() + cmp.Or(text, ",") + " and fill its buckets"
	}
	p.Sentence += ". Its override and its slots stay, and processes may deny it for a second more."
}

func (p *plan) override(v *visit) (err error) {
	if p.Limits, err = limitsOf(v.text("limits")); err == nil && p.Limits == nil {
		err = mistake("there are no limits; want some such as 100/m, 4 in flight")
	}
	if err != nil {
		return err
	}
	at, span := "", v.text("ends")
	if strings.Contains(span, "T") { // a time, as no duration has it
		at, span = span, ""
	}
	if p.Until, err = operate.ParseUntil(at, span); err != nil {
		if span != "" {
			err = mistake("%w, or a time such as 2026-12-31T18:00:00Z", err)
		}
		return err
	}
	p.Fields = map[string]string{"limits": v.text("limits"), "ends": p.Until.UTC().Format(time.RFC3339)}
	of := p.replaces()
	p.Sentence = fmt.Sprintf("Limit %s to %s instead of %s, until %s, in every process within a second.", p.whom(),
		operate.LimitsText(p.Limits, nil), of.Of, operate.TimeText(p.Until)) + p.denies()
	if of.LeftOut != "" {
		p.Sentence += " " + sentence(of.LeftOut)
	}
	if of.Kept != "" {
		p.Sentence += " It keeps " + of.Kept + "."
	}
	to := *p.Target
	to.Info = p.Info
	p.Sentence += p.afterwards(v, to)
	return nil
}

func (p *plan) end(v *visit) error {
	all, err := v.Overrides(v.ctx)
	if err != nil {
		return err
	}
	stored := p.Target.Client.Key
	all = slices.DeleteFunc(all, func(o operate.Listed) bool { return o.Policy != p.Policy || o.Client != stored })
	read, err := v.Read(all...)
	switch {
	case err != nil:
		return err
	case len(read) == 0 || (stored == "") != p.Everyone:
		return mistake("policy %q has no such override any more", p.Policy)
	}
	whose, o := "client "+shown(stored), read[0]
	if p.Everyone {
		whose = "all clients"
	}
	p.Sentence = fmt.Sprintf("End the override of policy %s for %s: %s until %s", shown(p.Policy), whose,
		operate.LimitsText(o.Limits, nil), operate.TimeText(o.Until))
	if o.Note != "" {
		p.Sentence += " (" + shown(o.Note) + ")"
	}
	whom := operate.Client{Key: stored, Hashed: operate.HasSecret(p.Info) && operate.ReadsAsHash(stored)}
	p.Sentence += "." + p.afterwards(v, v.Overridden(v.ctx, p.Info, whom))
	return nil
}

// confirm asks whether a change is meant.
func (h *handler) confirm(v *visit) error {
	p, err := h.planOf(v)
	if err == nil {
		err = v.check(p)
	}
	if err != nil {
		return err
	}
	return v.show("confirm", "Is that right?", p)
}

// change makes a change, and shows what has become of it. What Redis has not confirmed is not said to be done.
func (h *handler) change(v *visit) error {
	p, err := h.planOf(v)
	if err != nil {
		return err
	}
	_, err = bounded(v, func(context.Context) (struct{}, error) { return struct{}{}, h.make(v, p) })
	h.log(v, p.Do, p.wanted(v), err)
	switch {
	case isMistake(err):
		return err
	case err != nil:
		v.unconfirmed(err)
		return v.show("unconfirmed", "Not confirmed", p)
	}
	v.said = "Done: " + p.Sentence
	if p.Everyone || p.Do == "end" {
		variants, err := v.Variants(v.ctx, p.Policy)
		if err != nil {
			return v.show("done", "Done", nil)
		}
		return h.showPolicy(v, p.Policy, variants)
	}
	body, err := h.find(v) // its override is new
	if err == nil {
		err = h.showClient(v, body)
	}
	if err != nil { // the change is done all the same
		v.failed("What the client has now cannot be read.", err)
		return v.show("done", "Done", nil)
	}
	return nil
}

// wanted returns a change as an override, with the client as Redis has it.
func (p *plan) wanted(v *visit) ginlimit.Override {
	o := ginlimit.Override{Policy: p.Policy, Limits: p.Limits, Until: p.Until, Note: p.Note}
	if !p.Everyone {
		o.Client = v.Stored(p.Policy, p.Target.Client)
	}
	return o
}

// make makes a change.
func (h *handler) make(v *visit, p *plan) error {
	switch p.Do {
	case "block":
		return p.Target.Block(v.ctx, p.For)
	case "reset":
		return p.Target.Reset(v.ctx)
	case "end":
		return v.Change(v.ctx, ginlimit.Override{Policy: p.Policy, Client: p.Target.Client.Key}) // as Redis has it
	}
	return v.Change(v.ctx, p.wanted(v))
}

// unconfirmed says that Redis has not confirmed a change.
func (v *visit) unconfirmed(err error) {
	v.status = http.StatusServiceUnavailable
	v.notices = append(v.notices, notice{"This is not confirmed, and may have been done all the same.",
		said(err) + " Look again before you repeat it."})
}

// log writes who wanted what, and what has become of it. The client is as Redis has it: with a secret, a hash.
func (h *handler) log(v *visit, do string, of ginlimit.Override, err error) {
	result, level := "done", slog.LevelInfo
	switch {
	case isMistake(err):
		result = "refused"
	case err != nil:
		result, level = "not confirmed", slog.LevelWarn
	}
	fields := []any{"who", v.who, "change", do, "policy", of.Policy, "note", of.Note, "result", result}
	if of.Client != "" {
		fields = append(fields, "client", of.Client)
	}
	if of.Limits != nil {
		fields = append(fields, "limits", operate.LimitsText(of.Limits, nil))
	}
	if !of.Until.IsZero() {
		fields = append(fields, "until", of.Until.UTC().Format(time.RFC3339))
	}
	h.logger.Log(v.r.Context(), level, "ginlimit: an operator changes a limit", fields...)
}
