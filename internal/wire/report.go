package wire

import (
	"github.com/ginlimit/ginlimit/internal/bucket"
	"github.com/ginlimit/ginlimit/internal/dispatch"
	"github.com/ginlimit/ginlimit/internal/inflight"
)

// slotsID is the suffix of slots' keys.
var slotsID = func() string { b := bucket.NewSlots(1); return b.ID }()

// SlotsName returns the name of a key's slots. The prefix includes the brace.
func SlotsName(prefix, key string) *dispatch.Name {
	name := appendName(nil, prefix, []byte(key), slotsID)
	return &name
}

// AppendReport appends the keys and arguments of a report of slots, as report.lua documents them. For a cluster node,
// the keys after the first are undeclared. firstKey is how many arguments there are for the first key alone.
func AppendReport(args []any, updates []inflight.Update, prefix, process string, node bool) (all []any, firstKey int) {
	declared := len(updates)
	if node {
		declared = 1
	}
	args = append(args, declared)
	for i := range updates[:declared] {
		args = append(args, SlotsName(prefix, updates[i].Key))
	}
	args = append(args, process)
	for i := range updates {
		if i >= declared {
			args = append(args, SlotsName(prefix, updates[i].Key))
		}
		doubt := 0
		if updates[i].Doubt {
			doubt = 1
		}
		if args = append(args, updates[i].Ended, updates[i].Held, doubt); i == 0 {
			firstKey = len(args)
		}
	}
	return args, firstKey
}

// DecodeReport sets which updates arrived, by a reply to their report.
func DecodeReport(reported []bool, reply []int64) {
	for i := range reported {
		reported[i] = true
	}
	for _, failed := range reply {
		if 0 < failed && failed <= int64(len(reported)) {
			reported[failed-1] = false
		}
	}
}
