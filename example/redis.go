package main

import (
	"errors"
	"net/http"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

// errURL does not quote the URL, as go-redis' error does: it has the password.
var errURL = errors.New(
	"REDIS_URL is none that go-redis can read; in a password, write / as %2F, ? as %3F and # as %23")

// connector returns a function that makes a client of the server at url, or of a Redis inside this process, which it
// returns too.
func connector(url string) (func() *redis.Client, *ownRedis, error) {
	if url != "" {
		opts, err := redis.ParseURL(url)
		if err != nil {
			return nil, nil, errURL
		}
		return func() *redis.Client { return redis.NewClient(opts) }, nil, nil
	}
	own, err := startRedis()
	if err != nil {
		return nil, nil, err
	}
	return func() *redis.Client { return redis.NewClient(&redis.Options{Addr: own.Addr()}) }, own, nil
}

// ownRedis is a Redis inside this process, which can be stopped to see what happens without it.
type ownRedis struct {
	*miniredis.Miniredis

	mu      sync.Mutex
	running bool
}

func startRedis() (*ownRedis, error) {
	own := &ownRedis{Miniredis: miniredis.NewMiniRedis(), running: true}
	own.ClockTTL(true) // keys expire as time passes
	return own, own.Start()
}

// redisView says whether there is a Redis to switch, and whether it runs.
type redisView struct {
	Embedded bool `json:"embedded"`
	Running  bool `json:"running"`
}

// view works without a Redis of this process, too.
func (own *ownRedis) view() redisView {
	if own == nil {
		return redisView{}
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	return redisView{Embedded: true, Running: own.running}
}

func (own *ownRedis) stop(c *gin.Context) {
	own.mu.Lock()
	own.Close()
	own.running = false
	own.mu.Unlock()
	c.JSON(http.StatusOK, own.view())
}

// start fails if somebody has taken the port meanwhile.
func (own *ownRedis) start(c *gin.Context) {
	own.mu.Lock()
	if !own.running {
		own.running = own.Restart() == nil // with all its keys
	}
	own.mu.Unlock()
	c.JSON(http.StatusOK, own.view())
}
