package operate

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
)

// Overridden returns a client, or all clients if it is the zero Client, for [Operator.Afterwards]: its limits may be
// those that only the application knows. What cannot be read is no reason not to end an override.
func (o *Operator) Overridden(ctx context.Context, info ginlimit.PolicyInfo, client Client) (to Target) {
	if info.Name == "" { // nobody serves it
		return to
	}
	if client == (Client{}) {
		to.Info = info
		to.Override, to.unread = o.overrideOf(ctx, info, client)
		return to
	}
	to, to.unread = o.Target(ctx, info, client, nil)
	if of := (*Fault)(nil); errors.As(to.unread, &of) && of.Need == NeedsLimits {
		to.unread = nil
	}
	return to
}

// NotRead stands in place of what Afterwards would say.
const NotRead = "Whether a block or a ban denies it then cannot be read."

// Afterwards says what blocks and bans do once an override of a client, or of all, has limits until a time, or once it
// has ended if there are none. It returns "" if they do nothing.
func (o *Operator) Afterwards(ctx context.Context, to Target, limits []ginlimit.Limit, until time.Time) string {
	switch {
	case to.Info.Name == "" || IsDryRun(to.Info):
		return ""
	case to.unread != nil:
		return NotRead
	case to.Client == (Client{}):
		return ofAll(to, limits)
	}
	text, err := o.afterwards(ctx, to, limits, until)
	if err != nil {
		return NotRead
	}
	return text
}

// ofAll is Afterwards of all clients.
func ofAll(to Target, limits []ginlimit.Limit) string {
	ends, before := limits == nil, to.Info.Limits
	if to.Override != nil {
		before = to.Override.Limits
	}
	if ends {
		limits = to.Info.Limits
	}
	switch {
	case !slices.ContainsFunc(before, hasBucket) || SharesBucket(before, limits) || Prohibits(limits):
		return ""
	case ends:
		return "A block that it hides denies its client again."
	}
	return "Clients that are blocked are let in while it holds."
}

// afterwards is Afterwards of one client.
func (o *Operator) afterwards(
	ctx context.Context, to Target, limits []ginlimit.Limit, until time.Time,
) (string, error) {
	now, err := o.Holds(ctx, to)
	if err != nil {
		return "", err
	}
	ends := limits == nil
	rest, err := o.without(ctx, to)
	if err != nil {
		return "", err
	}
	if ends {
		limits = rest
	}
	then, err := o.blockOf(ctx, to, limits)
	if err != nil {
		return "", err
	}
	again, err := o.blockOf(ctx, to, rest)
	isKnown := ends && len(rest) > 0 || !ends && to.own != nil
	switch {
	case err != nil:
		return "", err
	case !now.Ban.IsZero():
		return "It stays denied until " + TimeText(now.Ban) + " by a ban: reset ends it.", nil
	case Prohibits(limits):
		return "", nil
	case !then.IsZero() && (!now.Block.IsZero() || to.Override == nil):
		return "It stays denied until " + TimeText(then) + " by a block: unblock ends it.", nil
	case !then.IsZero():
		return "A block that the override hides denies it again until " + TimeText(then) + ": unblock ends it.", nil
	case !isKnown:
		return "Only the application knows the client's own limits, and whether a block holds under them.", nil
	case ends && !now.Block.IsZero():
		return "It is blocked until " + TimeText(now.Block) + ", but let in when the override ends.", nil
	case !now.Block.IsZero() || !ends && again.After(until):
		return suspended(now.Block, again, until), nil
	}
	return "", nil
}

// suspended says what an override until a time does to a block that it hides: after it, there may be one again.
func suspended(block, again, until time.Time) string {
	denied := "denied again when it ends."
	switch {
	case block.IsZero():
		return "It is let in while the override holds, and by a block until " + TimeText(again) + " " + denied
	case again.After(until):
		return "It is blocked until " + TimeText(block) + ", but let in while the override holds, and " + denied
	}
	return "It is blocked until " + TimeText(block) + ", but let in while the override holds."
}

// without returns the limits that a client has without an override of its own, as far as they are known.
func (o *Operator) without(ctx context.Context, to Target) ([]ginlimit.Limit, error) {
	if to.Override == nil || to.Override.Client == "" {
		return to.own, nil
	}
	all, err := o.Overrides(ctx)
	if err != nil {
		return nil, err
	}
	other, err := o.ForAll(all, to.Info.Name)
	if other != nil {
		return other.Limits, err
	}
	return to.base, err
}
