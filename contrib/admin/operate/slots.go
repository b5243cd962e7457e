package operate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/clientkey"
)

// Holder is a process that holds slots of a client.
type Holder struct {
	Process string `json:"process"`
	Slots   int    `json:"slots"`
}

// Slots returns who holds a client's slots.
func (o *Operator) Slots(ctx context.Context, of ginlimit.PolicyInfo, c Client) ([]Holder, error) {
	key := o.key(of, c, "slots")
	entries, err := o.rdb.HGetAll(ctx, key).Result()
	if err != nil {
		return nil, err
	}
	ttl, err := o.rdb.PTTL(ctx, key).Result()
	return holders(entries, ttl), err
}

// key returns a key of a client: with the period of a bucket, or what else it ends with.
func (o *Operator) key(of ginlimit.PolicyInfo, c Client, id string) string {
	keys, prefix := clientkey.NewText(o.Secret), ginlimit.Key(of.Name, "")
	if c.Hashed {
		keys = clientkey.Hashes()
	}
	if IsDryRun(of) {
		prefix = ginlimit.Key(of.Name, "dry run", "")
	}
	key := "{" + string(keys.Append(nil, prefix, c.Key)) + "}:" + id
	if o.Prefix != "" {
		key = o.Prefix + ":" + key
	}
	return key
}

// holders reads a client's slots, with their TTL, by name. internal/wire/lua/slots.lua documents the entries.
func holders(entries map[string]string, ttl time.Duration) []Holder {
	var now, known, held, all, until int64
	if _, err := fmt.Sscan(entries["all"], &now); err == nil { // until then the key lasts
		now -= ttl.Milliseconds()
	}
	delete(entries, "all")
	list := []Holder{}
	for _, process := range slices.Sorted(maps.Keys(entries)) {
		_, err := fmt.Sscan(entries[process], &known, &held, &all, &until)
		if err == nil && all > 0 && until > now {
			list = append(list, Holder{process, int(all)})
		}
	}
	return list
}
