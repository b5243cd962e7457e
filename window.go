package ginlimit

import (
	_ "embed"
	"time"
)

// The scripts of windows: how the state of one is kept, and then the decision on several.
var (
	//go:embed fixed_window.lua
	fixedWindowSource string
	//go:embed sliding_window.lua
	slidingWindowSource string
	//go:embed window.lua
	windowSource string
)

// windowIDs end the key of a window, so that no algorithm meets what another has counted.
var windowIDs = [...]string{FixedWindow: ":fixed", SlidingWindow: ":sliding"}

// maxLogged is 2^52 - 1, the most tokens that are in a log (see sliding_window.lua).
const maxLogged = 1<<52 - 1

// windowReply is how many integers window.lua replies for a window.
const windowReply = 4

// appendWindows appends what window.lua is to do to the errand's windows.
func (e *errand) appendWindows(args []any) []any {
	switch {
	case e.op == opBlock:
		args = append(args, "block", ceilDiv(int64(e.block), int64(time.Millisecond)), 0)
	case e.op == opReset:
		args = append(args, "reset", 1, 0)
	case e.charges < 0:
		args = append(args, "give", -e.charges, 0)
	default:
		args = append(args, "take", min(e.n, maxUnits), e.charges)
	}
	for i := range e.buckets {
		args = append(args, e.buckets[i].args[:2]...)
	}
	return args
}

// appendEachWindow appends what is to be taken from the window of each errand.
func (c *command) appendEachWindow(args []any) []any {
	e := c.errands[0]
	args = append(args, "each", e.n, 0)
	args = append(args, e.buckets[0].args[:2]...)
	for _, e := range c.errands {
		args = append(args, e.charges)
	}
	return args
}
