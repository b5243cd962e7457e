package ginlimit

import (
	_ "embed"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// The scripts. A script of windows is how the state of one is kept, and then the decision on several. On a node of a
// cluster, calls for several clients have crossSlotSource before it.
var (
	//go:embed script.lua
	tokenBucketSource string
	//go:embed fixed_window.lua
	fixedWindowSource string
	//go:embed sliding_window.lua
	slidingWindowSource string
	//go:embed window.lua
	windowSource string
	//go:embed cross_slot.lua
	crossSlotSource string
)

// scripts returns the scripts of all kinds of buckets.
func scripts() [bucket.Kinds]string {
	return [...]string{
		bucket.Token:         tokenBucketSource,
		bucket.FixedWindow:   fixedWindowSource + windowSource,
		bucket.SlidingWindow: slidingWindowSource + windowSource,
	}
}
