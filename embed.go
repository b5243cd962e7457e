package ginlimit

import (
	_ "embed"

	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/redisstore"
)

// The scripts. Each is how the state of a kind is kept, or of two, and then the decision on several. On a node of a
// cluster, calls for several clients have crossSlotSource before it.
var (
	//go:embed script.lua
	tokenBucketSource string
	//go:embed fixed_window.lua
	fixedWindowSource string
	//go:embed sliding_window.lua
	slidingWindowSource string
	//go:embed several.lua
	severalSource string
	//go:embed mixed.lua
	mixedSource string
	//go:embed decide.lua
	decideSource string
	//go:embed slots.lua
	slotsSource string
	//go:embed guards.lua
	guardsSource string
	//go:embed tell.lua
	tellSource string
	//go:embed cross_slot.lua
	crossSlotSource string
)

// scripts returns the scripts of all kinds of buckets, and of those that may be mixed.
func scripts() (all [redisstore.Scripts]string) {
	copy(all[:], []string{
		bucket.Token:               severalSource + tokenBucketSource + decideSource,
		bucket.FixedWindow:         fixedWindowSource + decideSource,
		bucket.SlidingWindow:       slidingWindowSource + decideSource,
		redisstore.TokenCalendar:   severalSource + mixed(tokenBucketSource),
		redisstore.SlidingCalendar: mixed(slidingWindowSource),
	})
	for i, source := range all[:redisstore.Guarded] {
		all[redisstore.Guarded+i] = "local function decide(KEYS, ARGV)\n" + source + "\nend\n" + slotsSource + guardsSource
	}
	all[redisstore.Guards] = slotsSource + guardsSource
	all[redisstore.Tell] = slotsSource + tellSource
	return all
}

// mixed returns the script of calendar periods together with other buckets, whose source is given.
func mixed(source string) string {
	return "local calendar, other\n" + functions("calendar", fixedWindowSource) + functions("other", source) + mixedSource + decideSource
}

// functions returns a block that gives a name to the functions of a source. It sees no key, so that it decides on none.
func functions(name, source string) string {
	return "do\nlocal KEYS, ARGV = {}, {ARGV[1], '0', '0', '0', '0', '0'}\n" + source + name + ` = {
  read = read, most = most, found = found, take = take, give = give, giveMarked = giveMarked,
  block = block, leaves = leaves, mark = mark, expire = expire
}
end
`
}
