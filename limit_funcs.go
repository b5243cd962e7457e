package ginlimit

import (
	"context"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit/internal/dispatch"
)

// slowFunc is for how long functions of several policies are asked one after another: what they have in memory they
// return sooner.
const slowFunc = time.Millisecond

// foundLimits are the limits of a client as its policy has them, or why there are none.
type foundLimits struct {
	limits *policyLimits
	err    error
	known  bool // else nobody has looked
}

// findLimits returns the limits of a part of a decision: those that were found, if somebody has looked.
func (t *part) findLimits(ctx context.Context, found []foundLimits, i int) (*policyLimits, error) {
	if found != nil && found[i].known {
		return found[i].limits, found[i].err
	}
	return t.policy.limitsOf(ctx, t.client)
}

// askFuncs asks the functions of several policies for the limits of their clients, at the same time if they are slow. It
// returns nil if fewer than two are to be asked: then prepare asks. No policy in force that has no key, or comes after
// such a policy, is asked.
//
// If a function can find a [gin.Context], nobody is asked here, as several goroutines may not use one. Functions of keys
// and costs get it, so they are called one after another in any case.
func askFuncs(ctx context.Context, parts []part, hasKey func(*part) bool) []foundLimits {
	funcs := 0
	for i := range parts {
		if t := &parts[i]; t.phase == undecided && t.policy.counts.limitFunc != nil {
			funcs++
		}
	}
	if funcs < 2 || ctx.Value(gin.ContextKey) != nil {
		return nil
	}
	asked := make([]int, 0, funcs)
	for i := range parts {
		t := &parts[i]
		if t.phase != undecided {
			continue
		}
		if has := hasKey(t); !has && !t.dry {
			break // nobody after it is asked
		} else if has && t.policy.counts.limitFunc != nil {
			asked = append(asked, i)
		}
	}
	if len(asked) < 2 {
		return nil
	}
	return askEach(ctx, parts, asked)
}

// askEach asks for the limits of some parts. After an error of a policy in force, the later ones do not count.
func askEach(ctx context.Context, parts []part, asked []int) []foundLimits {
	found := make([]foundLimits, len(parts))
	dispatch.Together(len(asked), slowFunc, func(n int) (more bool) {
		i := asked[n]
		t, f := &parts[i], &found[i]
		f.limits, f.err = t.policy.limitsOf(ctx, t.client)
		f.known = true
		return f.err == nil || t.dry
	})
	return found
}
