package simulation_test

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// simReference is the reference model of the simulation's algorithm, by the server's clock.
type simReference struct {
	timed   testkit.Steppable
	tokens  *testkit.BucketModel // or nil
	windows *testkit.WindowModel // or nil
}

// simCounted is a bucket or window.
type simCounted struct {
	client string
	limit  ginlimit.Limit
}

func newSimReference(a ginlimit.Algorithm) simReference {
	if a == ginlimit.TokenBucket {
		m := testkit.NewBucketModel()
		return simReference{m, m, nil}
	}
	m := testkit.NewWindowModel(a)
	return simReference{m, nil, m}
}

// only returns a copy of some buckets.
func (r simReference) only(some ...simCounted) simReference {
	all := r
	if r.tokens != nil {
		all.tokens = &testkit.BucketModel{Now: r.tokens.Now, Buckets: map[string]*testkit.ModelBucket{}}
		all.timed = all.tokens
	} else {
		all.windows = &testkit.WindowModel{Algorithm: r.windows.Algorithm, Now: r.windows.Now,
			Windows: map[string]*testkit.ModelWindow{}}
		all.timed = all.windows
	}
	for _, c := range some {
		id := c.client + " " + c.limit.Period.String()
		if r.tokens != nil {
			if b := r.tokens.Buckets[id]; b != nil {
				all.tokens.Buckets[id] = b
			}
		} else if w := r.windows.Windows[id]; w != nil {
			all.windows.Windows[id] = w
		}
	}
	return all.clone()
}

// now is the time, in milliseconds.
func (r simReference) now() int64 {
	if r.tokens != nil {
		return r.tokens.Now
	}
	return r.windows.Now
}

// one is take, of one bucket.
func (r simReference) one(c simCounted, n, least int64) ginlimit.Result {
	return r.timed.Take(c.client, n, least, []ginlimit.Limit{c.limit})
}

// take takes of all buckets or none, up to n tokens but no fewer than least. It returns what is told of each.
func (r simReference) take(all []simCounted, n, least int64) (told []ginlimit.Result) {
	granted, allowed := n, true
	for _, c := range all {
		look := r.one(c, 0, least)
		allowed = allowed && look.Allowed
		granted = min(granted, int64(look.Remaining))
	}
	wants := granted
	if granted < least || !allowed {
		granted, wants = 0, least
	}
	if n == 0 {
		wants = least
	}
	for _, c := range all {
		t := r.one(c, granted, wants)
		t.Allowed, t.Granted = allowed, int(granted)
		told = append(told, t)
	}
	return told
}

func (r simReference) refund(c simCounted, n int64) {
	r.timed.Refund(c.client, n, []ginlimit.Limit{c.limit})
}

func (r simReference) block(c simCounted, d time.Duration) {
	r.timed.Block(c.client, d, []ginlimit.Limit{c.limit})
}

func (r simReference) reset(c simCounted) {
	r.timed.Reset(c.client, []ginlimit.Limit{c.limit})
}

// at sets the time, in milliseconds.
func (r simReference) at(ms int64) {
	if r.tokens != nil {
		r.tokens.Now = ms
	} else {
		r.windows.Now = ms
	}
}

func (r simReference) clone() simReference {
	if r.tokens != nil {
		c := newSimReference(ginlimit.TokenBucket)
		c.tokens.Now = r.tokens.Now
		for id, b := range r.tokens.Buckets {
			c.tokens.Buckets[id] = &testkit.ModelBucket{Missing: new(big.Rat).Set(b.Missing), At: b.At, Block: b.Block}
		}
		return c
	}
	c := newSimReference(r.windows.Algorithm)
	c.windows.Now = r.windows.Now
	for id, w := range r.windows.Windows {
		same := *w
		same.Taken = slices.Clone(w.Taken)
		c.windows.Windows[id] = &same
	}
	return c
}

// stored describes a bucket or window of the reference, as [simServer.stored] does.
func (r simReference) stored(c simCounted) string {
	if r.tokens != nil {
		return describeBucket(r.tokens.Bucket(c.client, c.limit))
	}
	return describeWindow(r.windows, r.windows.Window(c.client, c.limit))
}

// adopt has a token bucket of the reference be as it is in Redis. Windows are the same whatever their limit.
func (r simReference) adopt(key string, l ginlimit.Limit, found *testkit.ModelBucket) {
	if r.tokens != nil {
		found.At = r.tokens.Now
		r.tokens.Buckets[key+" "+l.Period.String()] = found
	}
}

// adoptWindow has a window of the reference be as it is in Redis.
func (r simReference) adoptWindow(key string, l ginlimit.Limit, found *testkit.ModelWindow) {
	found.Shift(r.windows.Now)
	r.windows.Windows[key+" "+l.Period.String()] = found
}

func describeBucket(b *testkit.ModelBucket) string {
	return fmt.Sprintf("%s missing, blocked for %d ms", b.Missing.RatString(), b.Block)
}

// describeWindow tells how long ago each token was taken, and of a fixed window how long ago it began.
func describeWindow(m *testkit.WindowModel, w *testkit.ModelWindow) string {
	now := m.Clock(w)
	blocked := max(0, w.Blocked-now)
	if m.Algorithm == ginlimit.FixedWindow {
		ago := int64(0)
		if len(w.Taken) > 0 {
			ago = now - w.Begun
		}
		return fmt.Sprintf("%d taken, begun %d ms ago, blocked for %d ms", len(w.Taken), ago, blocked)
	}
	ago := map[int64]int{}
	for _, at := range w.Taken {
		ago[now-at]++
	}
	text := ""
	for _, ms := range slices.Sorted(maps.Keys(ago)) {
		text += fmt.Sprintf("%d taken %d ms ago, ", ago[ms], ms)
	}
	return text + fmt.Sprintf("blocked for %d ms", blocked)
}

// bucketIn reads a token bucket as its key says that it is now.
func (v *simServer) bucketIn(name string, l ginlimit.Limit) *testkit.ModelBucket {
	b := &testkit.ModelBucket{Missing: new(big.Rat)}
	mini := v.homeLocked(name).mini
	if v.plan.algorithm != ginlimit.TokenBucket || !mini.Exists(name) {
		return b
	}
	value, _ := mini.Get(name)
	ttl := mini.TTL(name).Milliseconds()
	numbers := fields(value)
	if len(numbers) == 2 {
		b.Block = max(0, ttl-numbers[1])
	}
	arguments := scriptArguments(v.plan.algorithm, l)
	drain, cost := arguments[0], arguments[1]
	level := ttl * drain
	if len(numbers) > 0 && numbers[0] < drain { // else it is another limit's
		level -= numbers[0]
	}
	b.Missing = big.NewRat(level, cost)
	return b
}

// windowIn reads a window as its key says that it is now, which is 0.
func (v *simServer) windowIn(name string, l ginlimit.Limit) *testkit.ModelWindow {
	w, mini := &testkit.ModelWindow{}, v.homeLocked(name).mini
	if !mini.Exists(name) {
		return w
	}
	ttl, period := mini.TTL(name).Milliseconds(), l.Period.Milliseconds()
	if v.plan.algorithm == ginlimit.FixedWindow {
		value, _ := mini.Get(name)
		numbers, left := fields(value), ttl
		if len(numbers) == 3 {
			left, w.Blocked = ttl-numbers[1], ttl-numbers[2]
		}
		if w.Begun = left - period; left > 0 && len(numbers) > 0 {
			w.Taken = make([]int64, numbers[0])
		}
		return w
	}
	list, _ := mini.List(name)
	header := fields(list[0])
	before, now := header[0], header[2]-ttl
	if len(header) == 4 {
		w.Blocked = header[3] - now
	}
	newest := int64(math.MinInt64)
	if len(list) > 1 {
		newest = fields(list[len(list)-2])[0] - now
	}
	for entry := range slices.Chunk(list[1:], 2) {
		at, total := fields(entry[0])[0]-now, fields(entry[1])[0]
		if at+period > max(0, newest) {
			w.Taken = append(w.Taken, slices.Repeat([]int64{at}, int(total-before))...)
		}
		before = total
	}
	return w
}

// stored describes a bucket or window as it is in Redis.
func (v *simServer) stored(name string, c simCounted) string {
	if v.plan.algorithm == ginlimit.TokenBucket {
		return describeBucket(v.bucketIn(name, c.limit))
	}
	return describeWindow(testkit.NewWindowModel(v.plan.algorithm), v.windowIn(name, c.limit))
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
