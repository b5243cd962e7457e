package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// warmUp is at least how long a library runs before the first round: it connects, loads its script
// and learns of the way to Redis.
const warmUp = 100 * time.Millisecond

// trial measures all contestants in a situation: in each round every one of them once, in an order
// that is shuffled anew.
func trial(ctx context.Context, s situation, all []*contestant, rounds int,
	length time.Duration) (found []Round, err error) {
	length *= time.Duration(s.longer)
	var own *callers
	run := func(c *contestant, length time.Duration) (load, error) { return s.tool.run(ctx, c, length) }
	switch {
	case s.rate > 0:
		run = newStream(ctx, s).run
	case s.tool == nil:
		own = newCallers(ctx, s.callers, s.clients, s.denied)
		defer own.close()
		run = own.run
	}
	var taking []*contestant
	for _, c := range all {
		if !s.takesPart(c.library) {
			continue
		}
		defer c.tearDown()
		if err := c.setUp(ctx, s); err != nil {
			return nil, err
		}
		if s.denied { // take more than each client may have
			own.visit(c)
			own.visit(c)
		}
		taking = append(taking, c)
	}
	for _, c := range taking {
		if _, err := run(c, max(length, warmUp)); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", s.name, c.library.Name, err)
		}
	}
	order := slices.Clone(taking)
	for n := range rounds {
		rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for place, c := range order {
			if s.denied {
				own.visit(c) // ginlimit forgets a denial within a second, which is less than the others take
			}
			r, err := measure(ctx, c, func() (load, error) { return run(c, length) })
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", s.name, c.library.Name, err)
			}
			r.Situation, r.Round, r.Place = s.name, n, place
			found = append(found, r)
		}
	}
	return found, nil
}
