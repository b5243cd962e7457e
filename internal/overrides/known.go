package overrides

import (
	"hash/maphash"
	"iter"
	"maps"
	"time"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// known is what this process knows of the overrides. It does not change: the next one shares with it the shards in
// which nothing has changed.
type known[L any] struct {
	stamp    string
	policies map[string]*ofPolicy[L]
	shards   [256]map[client]limits[L]
	clients  int // in all shards
}

// ofPolicy are the overrides of a policy.
type ofPolicy[L any] struct {
	name    string
	all     *limits[L] // nil if there are none
	clients int        // that have one
}

// client is a client under a policy.
type client struct{ policy, client string }

// limits are what an override sets.
type limits[L any] struct {
	limits L
	until  time.Time
}

// seed is of the hashes that choose a client's shard.
var seed = maphash.MakeSeed()

func shardOf(client string) uint8 { return uint8(maphash.String(seed, client)) }

// client returns the override of a client.
func (k *known[L]) client(policy, of string) (limits[L], bool) {
	own, is := k.shards[shardOf(of)][client{policy, of}]
	return own, is
}

// inForce returns the overrides that have not ended.
func (k *known[L]) inForce(now time.Time) iter.Seq[client] {
	return func(yield func(client) bool) {
		for name, of := range k.policies {
			if of.all != nil && now.Before(of.all.until) && !yield(client{name, ""}) {
				return
			}
		}
		for _, shard := range k.shards {
			for c, own := range shard {
				if now.Before(own.until) && !yield(c) {
					return
				}
			}
		}
	}
}

// missing returns how many overrides in force another one lacks.
func (k *known[L]) missing(in *known[L]) (n int) {
	for c := range k.inForce(time.Now()) {
		of, is := in.policies[c.policy], false
		switch {
		case of == nil:
		case c.client == "":
			is = of.all != nil
		default:
			_, is = in.client(c.policy, c.client)
		}
		if !is {
			n++
		}
	}
	return n
}

// splits reports whether it is known which clients' overrides have ended.
func splits(texts map[string]string) bool {
	for name, text := range texts {
		if _, _, ok := clientkey.Split(name); text == "" && !ok {
			return false
		}
	}
	return true
}

// next returns what is known after changes. Its error is of a text that cannot be read: there is no such override.
func (o *Overrides[L]) next(before *known[L], stamp string, texts map[string]string) (next *known[L], err error) {
	k := *before
	d := draft[L]{known: &k}
	k.stamp, k.policies = stamp, maps.Clone(before.policies)
	parsed := map[string]L{}
	for name, text := range texts {
		var r Override
		if text == "" {
			policy, of, _ := clientkey.Split(name)
			d.set(policy, of, nil)
			continue
		}
		fault := wire.UnmarshalText(text, &r.Version, &r)
		own, is := parsed[r.Limits] // many have the same
		if !is && fault == nil {
			if own, fault = o.Limits(r.Limits); fault == nil {
				parsed[r.Limits] = own
			}
		}
		if fault != nil {
			err = fault
			if policy, of, ok := clientkey.Split(name); ok {
				d.set(policy, of, nil)
			}
			continue
		}
		d.set(r.Policy, r.Client, &limits[L]{own, time.UnixMilli(r.Until)})
	}
	return d.known, err
}

// draft is a known that changes.
type draft[L any] struct {
	*known[L]
	own [256]bool // the shards that no other known has
}

// set sets an override, or ends it if it is nil.
func (d *draft[L]) set(policy, of string, to *limits[L]) {
	next := ofPolicy[L]{name: policy}
	if before := d.policies[policy]; before != nil {
		next = *before
	}
	if of == "" {
		next.all = to
	} else {
		i, key := shardOf(of), client{next.name, of}
		if !d.own[i] {
			d.shards[i], d.own[i] = maps.Clone(d.shards[i]), true
		}
		before := len(d.shards[i])
		switch {
		case to == nil:
			delete(d.shards[i], key)
		case d.shards[i] == nil:
			d.shards[i] = map[client]limits[L]{key: *to}
		default:
			d.shards[i][key] = *to
		}
		more := len(d.shards[i]) - before
		next.clients, d.clients = next.clients+more, d.clients+more
	}
	if next.all == nil && next.clients == 0 {
		delete(d.policies, policy)
		return
	}
	if d.policies == nil {
		d.policies = map[string]*ofPolicy[L]{}
	}
	d.policies[next.name] = &next
}
