package ginlimit_test

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/ginlimit/ginlimit"
)

// simReference is the reference model of the simulation's algorithm, by the server's clock.
type simReference struct {
	steppable
	tokens  *model       // or nil
	windows *windowModel // or nil
}

func newSimReference(a ginlimit.Algorithm) simReference {
	if a == ginlimit.TokenBucket {
		m := newModel()
		return simReference{m, m, nil}
	}
	m := newWindowModel(a)
	return simReference{m, nil, m}
}

// at sets the time, in milliseconds.
func (r simReference) at(ms int64) {
	if r.tokens != nil {
		r.tokens.now = ms
	} else {
		r.windows.now = ms
	}
}

func (r simReference) clone() simReference {
	if r.tokens != nil {
		c := newSimReference(ginlimit.TokenBucket)
		c.tokens.now = r.tokens.now
		for id, b := range r.tokens.buckets {
			c.tokens.buckets[id] = &modelBucket{missing: new(big.Rat).Set(b.missing), at: b.at, block: b.block}
		}
		return c
	}
	c := newSimReference(r.windows.algorithm)
	c.windows.now = r.windows.now
	for id, w := range r.windows.windows {
		same := *w
		same.taken = slices.Clone(w.taken)
		c.windows.windows[id] = &same
	}
	return c
}

// stored describes a bucket or window of the reference, as [simServer.stored] does.
func (r simReference) stored(key string, l ginlimit.Limit) string {
	if r.tokens != nil {
		b := r.tokens.bucket(key, l)
		return describeBucket(b)
	}
	return describeWindow(r.windows, r.windows.window(key, l))
}

// adopt has a token bucket of the reference be as it is in Redis. Windows are the same whatever their limit.
func (r simReference) adopt(key string, l ginlimit.Limit, found *modelBucket) {
	if r.tokens != nil {
		found.at = r.tokens.now
		r.tokens.buckets[key+" "+l.Period.String()] = found
	}
}

// adoptWindow has a window of the reference be as it is in Redis.
func (r simReference) adoptWindow(key string, l ginlimit.Limit, found *modelWindow) {
	found.shift(r.windows.now)
	r.windows.windows[key+" "+l.Period.String()] = found
}

func describeBucket(b *modelBucket) string {
	return fmt.Sprintf("%s missing, blocked for %d ms", b.missing.RatString(), b.block)
}

// describeWindow tells how long ago each token was taken, and of a fixed window how long ago it began.
func describeWindow(m *windowModel, w *modelWindow) string {
	now := m.clock(w)
	blocked := max(0, w.blocked-now)
	if m.algorithm == ginlimit.FixedWindow {
		ago := int64(0)
		if len(w.taken) > 0 {
			ago = now - w.begun
		}
		return fmt.Sprintf("%d taken, begun %d ms ago, blocked for %d ms", len(w.taken), ago, blocked)
	}
	ago := map[int64]int{}
	for _, at := range w.taken {
		ago[now-at]++
	}
	text := ""
	for _, ms := range slices.Sorted(maps.Keys(ago)) {
		text += fmt.Sprintf("%d taken %d ms ago, ", ago[ms], ms)
	}
	return text + fmt.Sprintf("blocked for %d ms", blocked)
}

// bucketIn reads a token bucket as its key says that it is now.
func (v *simServer) bucketIn(name string, l ginlimit.Limit) *modelBucket {
	b := &modelBucket{missing: new(big.Rat)}
	mini := v.homeLocked(name).mini
	if v.plan.algorithm != ginlimit.TokenBucket || !mini.Exists(name) {
		return b
	}
	value, _ := mini.Get(name)
	ttl := mini.TTL(name).Milliseconds()
	numbers := fields(value)
	if len(numbers) == 2 {
		b.block = max(0, ttl-numbers[1])
	}
	arguments := scriptArguments(v.plan.algorithm, l)
	drain, cost := arguments[0], arguments[1]
	level := ttl * drain
	if len(numbers) > 0 && numbers[0] < drain { // else it is another limit's
		level -= numbers[0]
	}
	b.missing = big.NewRat(level, cost)
	return b
}

// windowIn reads a window as its key says that it is now, which is 0.
func (v *simServer) windowIn(name string, l ginlimit.Limit) *modelWindow {
	w, mini := &modelWindow{}, v.homeLocked(name).mini
	if !mini.Exists(name) {
		return w
	}
	ttl, period := mini.TTL(name).Milliseconds(), l.Period.Milliseconds()
	if v.plan.algorithm == ginlimit.FixedWindow {
		value, _ := mini.Get(name)
		numbers, left := fields(value), ttl
		if len(numbers) == 3 {
			left, w.blocked = ttl-numbers[1], ttl-numbers[2]
		}
		if w.begun = left - period; left > 0 && len(numbers) > 0 {
			w.taken = make([]int64, numbers[0])
		}
		return w
	}
	list, _ := mini.List(name)
	header := fields(list[0])
	before, now := header[0], header[2]-ttl
	if len(header) == 4 {
		w.blocked = header[3] - now
	}
	newest := int64(math.MinInt64)
	if len(list) > 1 {
		newest = fields(list[len(list)-2])[0] - now
	}
	for entry := range slices.Chunk(list[1:], 2) {
		at, total := fields(entry[0])[0]-now, fields(entry[1])[0]
		if at+period > max(0, newest) {
			w.taken = append(w.taken, slices.Repeat([]int64{at}, int(total-before))...)
		}
		before = total
	}
	return w
}

// stored describes a bucket or window as it is in Redis.
func (v *simServer) stored(name string, l ginlimit.Limit) string {
	if v.plan.algorithm == ginlimit.TokenBucket {
		return describeBucket(v.bucketIn(name, l))
	}
	return describeWindow(newWindowModel(v.plan.algorithm), v.windowIn(name, l))
}

// fields reads the numbers in a text.
func fields(text string) (all []int64) {
	for word := range strings.FieldsSeq(text) {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return nil
		}
		all = append(all, n)
	}
	return all
}
