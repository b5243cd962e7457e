package top

import (
	"cmp"
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Used returns the clients that used most tokens of a policy in the last ten minutes and in the current one, in all
// processes with a [Reporter] [WithUsage] of the prefix: at most 100, the largest use first. Use is what decisions
// charged, by Redis or without it, and what settlements charged beyond that, less what they gave back, also of
// charges before that time. It does not know of [ginlimit.Policy.Refund].
//
// Each client with more than a hundredth of all that was charged, before anything was given back, is in the list.
func Used(ctx context.Context, rdb redis.UniversalClient, prefix, policy string) ([]Client, error) {
	all, err := read(ctx, rdb, prefix, policy)
	if err != nil {
		return nil, err
	}
	var took, gave ranking
	for _, minute := range all {
		took, gave = took.merge(minute.of[charged]), gave.merge(minute.of[returned])
	}
	returns := make(map[string]client, len(gave.clients))
	for _, c := range gave.clients {
		returns[c.text] = c
	}
	clients := make([]Client, 0, len(took.clients))
	for _, c := range took.clients {
		back, listed := returns[c.text]
		if !listed {
			back = client{count: gave.rest, err: gave.rest}
		}
		used := c.client()
		used.Tokens = c.count - (back.count - back.err) // the least that it gave back
		used.Error = min(c.err+back.err, used.Tokens)
		if used.Tokens > 0 {
			clients = append(clients, used)
		}
	}
	slices.SortStableFunc(clients, func(a, b Client) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return clients, nil
}
