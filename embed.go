package ginlimit

import (
	_ "embed"
	"fmt"

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

// scripts returns the scripts of all kinds of buckets, of those that may be mixed, and of each together with a ban or slots.
func scripts() (all [redisstore.Scripts]string) {
	copy(all[:], []string{
		bucket.Token:               several(false) + tokenBucketSource + decideSource,
		bucket.FixedWindow:         fixedWindowSource + decideSource,
		bucket.SlidingWindow:       slidingWindowSource + decideSource,
		redisstore.TokenCalendar:   several(false) + mixed(tokenBucketSource),
		redisstore.SlidingCalendar: mixed(slidingWindowSource),
	})
	for i, source := range all[:redisstore.Guarded] {
		inLine := ""
		if i == int(bucket.Token) || i == redisstore.TokenCalendar {
			inLine = several(true)
		}
		all[redisstore.Guarded+i] = inLine + slotsSource + "local function decide(KEYS, ARGV)\n" + source + "\nend\n" + guardsSource
	}
	all[redisstore.Guards] = slotsSource + guardsSource
	all[redisstore.Tell] = slotsSource + tellSource
	return all
}

// several returns the source of several limits in line, together with guards or not.
func several(guarded bool) string {
	return fmt.Sprintf("local guarded = %t\n%s", guarded, severalSource)
}

// mixed returns the script of calendar periods together with other buckets, whose source is given.
func mixed(source string) string {
	return "local calendar, other\n" + functions("calendar", fixedWindowSource) + functions("other", source) + mixedSource + decideSource
}

// functions returns a block that gives a name to the functions of a source. It sees no key, so that it decides on none.
func functions(name, source string) string {
	return "do\nlocal KEYS, ARGV = {}, {ARGV[1], '0', '0', '0', '0', '0'}\n" + source + name + ` = {
  drainOf = drainOf, read = read, most = most, found = found, take = take, loose = loose, give = give, giveMarked = giveMarked,
  block = block, leaves = leaves, mark = mark, expire = expire
}
end
`
}
