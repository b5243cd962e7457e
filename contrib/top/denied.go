package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// Client is one of the clients that a policy denies most, or that use most.
type Client struct {
	Key     string // as the policy's key function returned it, or as it stands in Redis
	Hashed  bool   // Key is a hash, as Redis has no other text of the client: it is long, not ASCII, or secret
	Denials int64  // the most that there were; of [Denied]
	Error   int64  // there were at least Denials - Error, or Tokens - Error
	Tokens  int64  // the most that were used; of [Used]
}

// Minute is how many decisions of each outcome a policy had in a minute, dry runs left out. Processes without
// [WithOutcomes] count denials alone.
type Minute struct {
	Start                            time.Time
	Allowed, Denied, Skipped, Failed int64
}

// Denied returns the clients that a policy denied most in the last ten minutes and in the current one, by any
// process with a [Reporter] of the prefix: at most 100, the most denied first.
//
// Each client with more than a hundredth of these denials is in the list. The latest denials are missing for as
// long as processes wait to report them (see [WithInterval]).
func Denied(ctx context.Context, rdb redis.UniversalClient, prefix, policy string) ([]Client, error) {
	all, err := read(ctx, rdb, prefix, policy)
	if err != nil {
		return nil, err
	}
	var sum ranking
	for _, minute := range all {
		sum = sum.merge(minute.of[denials])
	}
	clients := make([]Client, len(sum.clients))
	for i, c := range sum.clients {
		clients[i] = c.client()
		clients[i].Denials, clients[i].Error = c.count, c.err
	}
	return clients, nil
}

// client returns the client of a counter.
func (c client) client() Client {
	if c.text[0] == '#' {
		return Client{Key: c.text, Hashed: true}
	}
	return Client{Key: c.text[1:]}
}

// Minutes returns what [Denied] counts, by the minute, the oldest first. Minutes without a report are left out.
func Minutes(ctx context.Context, rdb redis.UniversalClient, prefix, policy string) ([]Minute, error) {
	all, err := read(ctx, rdb, prefix, policy)
	list := make([]Minute, len(all))
	for i, m := range all {
		n := m.outcomes
		list[i] = Minute{time.Unix(60*m.number, 0), n[ginlimit.OutcomeAllowed], n[ginlimit.OutcomeDenied],
			n[ginlimit.OutcomeSkipped], n[ginlimit.OutcomeFailed]}
	}
	return list, err
}

// minute is the summary of a minute, counted from 1970.
type minute struct {
	number int64
	summary
}

func read(ctx context.Context, rdb redis.UniversalClient, prefix, policy string) ([]minute, error) {
	key := redisKey(prefix, policy)
	list, err := readScript.Run(ctx, rdb, []string{key}, minutes).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("top: reports of policy %q: %w", policy, err)
	}
	all := make([]minute, len(list)/2)
	for i := range all {
		m := &all[i]
		if m.number, err = strconv.ParseInt(list[2*i], 10, 64); err == nil {
			m.summary, err = parseSummary(list[2*i+1])
		}
		if err != nil {
			return nil, fmt.Errorf("top: key %q: %w", key, err)
		}
	}
	slices.SortFunc(all, func(a, b minute) int { return cmp.Compare(a.number, b.number) })
	return all, nil
}
