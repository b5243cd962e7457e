package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

// newSub2api returns sub2api's script, called as sub2api calls it: once for each level, one level after another. With
// its index, each slot that is taken or given back is followed by commands that keep an index of the keys in use.
func newSub2api(acquire string, withIndex bool) system {
	const prefix = "concurrency:{sub2api:concurrency}:"
	kinds := [...]string{"user", "account", "api_key"}
	slotKey := func(level int, id string) string { return prefix + kinds[level] + ":" + id }
	s := system{"sub2api", func(rdb *redis.Client, l limits) (gin.HandlerFunc, func(), error) {
		script, ttl := redis.NewScript(acquire), 15*time.Minute
		if l.ttl > 0 {
			ttl = l.ttl
		}
		process, requests := strconv.FormatUint(rand.Uint64(), 36)+"-", atomic.Int64{}
		release := func(ctx context.Context, level int, id, request string) error {
			if err := rdb.ZRem(ctx, slotKey(level, id), request).Err(); err != nil || !withIndex {
				return err
			}
			now, err := rdb.Time(ctx).Result()
			if err != nil {
				return err
			}
			pipe := rdb.Pipeline()
			pipe.ZRemRangeByScore(ctx, slotKey(level, id), "-inf", strconv.FormatInt(now.Add(-ttl).Unix(), 10))
			left := pipe.ZCard(ctx, slotKey(level, id))
			pipe.Get(ctx, prefix+"wait:"+kinds[level]+":"+id)
			if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			index := prefix + kinds[level] + ":active_index"
			if left.Val() == 0 {
				return rdb.ZRem(ctx, index, id).Err()
			}
			return rdb.ZAdd(ctx, index, redis.Z{Score: float64(now.Add(ttl).Unix()), Member: id}).Err()
		}
		return func(c *gin.Context) {
			ctx := c.Request.Context()
			request := process + strconv.FormatInt(requests.Add(1), 36)
			for level, slots := range l.slots {
				id := idOf(c, level)
				keys := []string{slotKey(level, id), prefix + "live:" + kinds[level] + ":" + id}
				reply, err := script.Run(ctx, rdb, keys, slots, int(ttl.Seconds()), request).Int64Slice()
				if err != nil {
					c.AbortWithStatus(http.StatusServiceUnavailable)
					return
				}
				if reply[0] != 1 {
					c.AbortWithStatus(http.StatusTooManyRequests)
					return
				}
				defer func() { _ = release(ctx, level, id, request) }()
				if withIndex {
					_ = rdb.ZAdd(ctx, prefix+kinds[level]+":active_index",
						redis.Z{Score: float64(reply[1]) + ttl.Seconds(), Member: id}).Err()
				}
			}
			c.Next()
		}, func() {}, nil
	}, func(l limits) bool { return !l.rate }, slotKey}
	if withIndex {
		s.name = "sub2api with its index"
		s.takesPart = func(l limits) bool { return !l.rate && len(l.slots) == 2 }
	}
	return s
}

// newLiteLLM returns LiteLLM's scripts, called as LiteLLM calls them: once for each level, one level after another.
// They count first, and the process compares the counts with the limits. A denied request gives back what it counted.
func newLiteLLM(batch, increment string) system {
	kinds := [...]string{"api_key", "user", "team"}
	const window = 60 // seconds
	key := func(level int, id, kind string) string { return "{" + kinds[level] + ":" + id + "}:" + kind }
	slotKey := func(level int, id string) string { return key(level, id, "max_parallel_requests") }
	return system{"LiteLLM", func(rdb *redis.Client, l limits) (gin.HandlerFunc, func(), error) {
		count, add := redis.NewScript(batch), redis.NewScript(increment)
		clock := l.clock
		if clock == nil {
			clock = time.Now
		}
		return func(c *gin.Context) {
			ctx, over, now := c.Request.Context(), false, clock().Unix()
			for level, slots := range l.slots {
				id := idOf(c, level)
				var keys []string
				if l.rate && level == 0 {
					keys = append(keys, key(level, id, "window"), key(level, id, "requests"))
				}
				keys = append(keys, key(level, id, "window"), slotKey(level, id))
				reply, err := count.Run(ctx, rdb, keys, now, window).Slice()
				if err != nil {
					c.AbortWithStatus(http.StatusServiceUnavailable)
					return
				}
				counted, _ := reply[len(reply)-1].(int64)
				over = over || counted > int64(slots)
				defer func() { _ = add.Run(ctx, rdb, []string{slotKey(level, id)}, -1, window).Err() }()
			}
			if over {
				c.AbortWithStatus(http.StatusTooManyRequests)
				return
			}
			c.Next()
		}, func() {}, nil
	}, func(limits) bool { return true }, slotKey}
}
