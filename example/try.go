package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

// algorithms are those that the page compares, by the names that requests have for them.
var algorithms = [...]struct {
	name      string
	algorithm ginlimit.Algorithm
	code      string
}{
	{"token-bucket", ginlimit.TokenBucket, ""},
	{"fixed-window", ginlimit.FixedWindow, ".WithAlgorithm(ginlimit.FixedWindow)"},
	{"sliding-window", ginlimit.SlidingWindow, ".WithAlgorithm(ginlimit.SlidingWindow)"},
}

// maxTokens bounds rate and burst, and maxPeriod the period: a visitor chooses them.
const (
	maxTokens = 100
	maxPeriod = time.Minute
)

var errLimit = fmt.Sprintf(`limit: want "rate/period" or "rate/period burst n", such as "10/s burst 20": `+
	"rate and burst from 1 to %d, the period from 1s to %.0fs in whole seconds\n", maxTokens, maxPeriod.Seconds())

// parseLimit reads a limit that a visitor chose. If it is outside the bounds, ok is false.
func parseLimit(text string) (limit ginlimit.Limit, ok bool) {
	limit, err := ginlimit.ParseLimit(text)
	return limit, err == nil &&
		limit.Calendar == ginlimit.Calendar{} && limit.Algorithm == ginlimit.TokenBucket &&
		1 <= limit.Rate && limit.Rate <= maxTokens &&
		limit.Burst <= maxTokens &&
		time.Second <= limit.Period && limit.Period <= maxPeriod && limit.Period%time.Second == 0
}

// forAlgorithm returns the limit counted by an algorithm: windows have no burst.
func forAlgorithm(limit ginlimit.Limit, algorithm ginlimit.Algorithm) ginlimit.Limit {
	if algorithm != ginlimit.TokenBucket {
		limit.Burst = 0
	}
	return limit.WithAlgorithm(algorithm)
}

// chosenLimit is the key of a visitor's limit in a context.
type chosenLimit struct{}

// tries are policies whose limit each request chooses, one for each algorithm.
type tries [len(algorithms)]*ginlimit.Policy

func newTries(limiter *ginlimit.Limiter) (tries, error) {
	var t tries
	for i, a := range algorithms {
		var err error
		t[i], err = limiter.Policy("try "+a.name,
			ginlimit.WithLimitFunc(func(ctx context.Context, _ string) ([]ginlimit.Limit, error) {
				limit, _ := ctx.Value(chosenLimit{}).(ginlimit.Limit) // the zero Limit is an error
				return []ginlimit.Limit{forAlgorithm(limit, a.algorithm)}, nil
			}))
		if err != nil {
			return t, err
		}
	}
	return t, nil
}

// middleware limits a request by the limit and the algorithm of its query.
func (t tries) middleware() gin.HandlerFunc {
	var handlers [len(algorithms)]gin.HandlerFunc
	names := make([]string, len(algorithms))
	for i, a := range algorithms {
		handlers[i], names[i] = t[i].Handler(), a.name
	}
	return func(c *gin.Context) {
		limit, ok := parseLimit(c.Query("limit"))
		if !ok {
			c.String(http.StatusBadRequest, errLimit)
			c.Abort()
			return
		}
		c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), chosenLimit{}, limit))
		name := c.DefaultQuery("algorithm", names[0])
		for i := range names {
			if name == names[i] {
				handlers[i](c)
				return
			}
		}
		c.String(http.StatusBadRequest, "algorithm: want one of %s\n", strings.Join(names, ", "))
		c.Abort()
	}
}

// code returns the Go code of a middleware.
func code(limit ginlimit.Limit, algorithm string) string {
	var text string
	switch limit.Period {
	case time.Second:
		text = fmt.Sprintf("PerSecond(%d)", limit.Rate)
	case time.Minute:
		text = fmt.Sprintf("PerMinute(%d)", limit.Rate)
	default:
		text = fmt.Sprintf("Per(%d, %d*time.Second)", limit.Rate, limit.Period/time.Second)
	}
	if limit.Burst != 0 {
		text += fmt.Sprintf(".WithBurst(%d)", limit.Burst)
	}
	return fmt.Sprintf("router.Use(limiter.Handler(\"all\", ginlimit.%s%s))", text, algorithm)
}
