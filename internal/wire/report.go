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

// AppendReport appends the keys and arguments of a report of slots, as report.lua documents them.
func AppendReport(args []any, updates []inflight.Update, prefix, process string) []any {
	args = append(args, len(updates))
	for i := range updates {
		args = append(args, SlotsName(prefix, updates[i].Key))
	}
	args = append(args, process)
	for i := range updates {
		doubt := 0
		if updates[i].Doubt {
			doubt = 1
		}
		args = append(args, updates[i].Ended, updates[i].Held, doubt)
	}
	return args
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
