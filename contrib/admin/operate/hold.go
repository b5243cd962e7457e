package operate

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/traits"
)

// Holds is what denies a client whatever its limits have left, and until when. A zero time is no such thing.
type Holds struct {
	Block  time.Time // under the limits in force
	Hidden time.Time // a block under the limits that an override replaces
	Ban    time.Time
}

// Holds reads what denies a client whatever its limits have left.
func (o *Operator) Holds(ctx context.Context, to Target) (h Holds, err error) {
	if slices.Contains(to.Info.Options, "WithBan") {
		h.Ban, err = o.endOf(ctx, o.key(to.Info, to.Client, "ban"), banFields)
	}
	if err == nil {
		h.Block, err = o.blockOf(ctx, to, to.own)
	}
	if err == nil && h.Block.IsZero() {
		h.Hidden, err = o.blockOf(ctx, to, to.base)
	}
	return h, err
}

const notHeld = "neither blocked nor banned"

// String returns what denies the client, as the end of a sentence about it.
func (h Holds) String() string {
	var all []string
	add := func(end time.Time, text string) {
		if !end.IsZero() {
			all = append(all, text+" until "+TimeText(end))
		}
	}
	add(h.Block, "blocked")
	add(h.Hidden, "blocked (hidden by the override)")
	add(h.Ban, "banned")
	if all == nil {
		return notHeld
	}
	return strings.Join(all, " and ")
}

// Found says what a reset of a client ends, after the client in a sentence, and whether it ends anything: that is true
// if it cannot be read. Where clients are neither blocked nor banned it says nothing.
func (o *Operator) Found(ctx context.Context, to Target) (text string, ends bool) {
	if HasShares(to.Info) {
		return "", false
	}
	holds, err := o.Holds(ctx, to)
	if err != nil {
		return "", true
	}
	return ", found " + holds.String() + ",", holds != Holds{}
}

// blockOf returns the end of the longest block under some limits.
func (o *Operator) blockOf(ctx context.Context, to Target, limits []ginlimit.Limit) (end time.Time, err error) {
	for _, l := range limits {
		if !hasBucket(l) {
			continue
		}
		key := o.key(to.Info, to.Client, o.limiters[0].Traits(traits.Key{}).BucketID(l))
		one, err := o.endOf(ctx, key, fieldsOf(l))
		if err != nil {
			return end, err
		}
		if one.After(end) {
			end = one
		}
	}
	return end, nil
}

// Fields that a value has if it denies everything: of a token bucket, of another window and of a ban the last one is
// how long before the key expires that ends; a log of a sliding window has two times, of which the key expires at the
// first. The scripts in internal/wire/lua document them.
const (
	tokenFields   = 2
	windowFields  = 3
	slidingFields = 4
	banFields     = 2
)

func fieldsOf(l ginlimit.Limit) int {
	switch {
	case l.Calendar != (ginlimit.Calendar{}) || l.Algorithm == ginlimit.FixedWindow:
		return windowFields
	case l.Algorithm == ginlimit.SlidingWindow:
		return slidingFields
	}
	return tokenFields
}

// endOf returns when a key no longer denies everything, or the zero time if it does not.
func (o *Operator) endOf(ctx context.Context, key string, fields int) (end time.Time, err error) {
	pipe := o.rdb.Pipeline()
	text, ttl := (*redis.StringCmd)(nil), pipe.PTTL(ctx, key)
	if fields == slidingFields {
		text = pipe.LIndex(ctx, key, 0)
	} else {
		text = pipe.Get(ctx, key)
	}
	if _, err = pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return end, err
	}
	all := strings.Fields(text.Val())
	if len(all) != fields || ttl.Val() <= 0 {
		return end, nil
	}
	last, _ := strconv.ParseInt(all[fields-1], 10, 64)
	left := ttl.Val().Milliseconds() - last
	if fields == slidingFields {
		expires, _ := strconv.ParseInt(all[2], 10, 64)
		left = last - expires + ttl.Val().Milliseconds()
	}
	if left > 0 {
		end = time.Now().Add(time.Duration(left) * time.Millisecond)
	}
	return end, nil
}
