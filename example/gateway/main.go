// Command gateway is an AI gateway. It serves three API keys, alice and alice-ci of the user alice, and bob, through
// the upstream account acme, and two that traffic comes from. Answers are streamed, a token a millisecond. One AllOf
// has these policies, which must all allow a request, or none is charged:
//
//	api key    60 requests a minute, 2 in flight                        of each API key
//	tokens     6,000 a minute, 100,000 a calendar month                 of each API key
//	user       3 requests in flight                                     of each user
//	account    4 requests in flight                                     of each account
//	upstream   9,000 tokens a minute, 16,000 at once, shared fairly     of each account
//
// In each process four requests of each key, user and account wait for a slot, for two seconds at most. A request that
// lacks tokens is denied at once.
//
//	go run -C example/gateway .                            with a Redis of its own, in the process
//	go run -C example/gateway . -redis 127.0.0.1:6379      with a Redis server, under the prefix gateway
//
// # Tokens
//
// A request takes the tokens of its prompt and max_tokens first, and settles what it used. A client that leaves has
// used its prompt and what was written:
//
//	curl -iN -H 'X-API-Key: alice' -d '{"prompt":"Why is the sky blue?","max_tokens":400}' localhost:8082/v1/complete
//
// # Queues and levels
//
// Two requests of alice, one of alice-ci and one of bob fill the account. The fifth waits for the account, so its
// first byte comes when another has ended:
//
//	for key in alice alice alice-ci bob bob; do
//	  curl -sN -o /dev/null -w "$key %{http_code}, first byte after %{time_starttransfer} s\n" -H "X-API-Key: $key" \
//	    -d '{"prompt":"Why?","max_tokens":900}' localhost:8082/v1/complete &
//	done
//	wait
//
// # Fair shares
//
// Two of alice's keys take 9,000 tokens at once, and then she holds what she may of the account. The next 429 says so,
// and bob still has his share (docs/fair.md). Restart the gateway first, so that all buckets are full:
//
//	ask() { # a key and how many tokens its prompt has
//	  printf '{"prompt":"%*s","max_tokens":1}' $((4 * $2)) Why | curl -s -o /dev/null -w "$1 %{http_code}\n" \
//	    -H "X-API-Key: $1" -d @- localhost:8082/v1/complete
//	}
//	ask alice 5000; ask alice-ci 4000; ask alice-ci 1500; ask bob 5500 # 200, 200, 429, 200
//
// # Staff
//
// The page of those who operate the limits is under /staff/, at the address that the program prints (staff.go). Traffic
// comes from carol, who asks too often, and dave (-traffic=false has none).
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"iter"
	"log"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/top"
)

// apiKeys are those that exist: a header that anybody may invent is no key to count under.
var apiKeys = map[string]struct{ user, account string }{
	"alice": {"alice", "acme"}, "alice-ci": {"alice", "acme"}, "bob": {"bob", "acme"},
	"carol": {"carol", "globex"}, "dave": {"dave", "globex"},
}

// prefix is the gateway's own: processes of one prefix share limits if Redis is away, whatever they serve.
const prefix = "gateway"

// keys names the API keys.
func keys() string { return strings.Join(slices.Sorted(maps.Keys(apiKeys)), ", ") }

func main() {
	addr := flag.String("addr", "127.0.0.1:8082", "the address to listen on")
	redisAddr := flag.String("redis", "", "the address of a Redis server; without one, a Redis in this process")
	password := flag.String("staff", rand.Text(), "the password of the user staff")
	busy := flag.Bool("traffic", true, "whether carol and dave ask")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *addr, *redisAddr, *password, *busy, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, addr, redisAddr, password string, busy bool, out io.Writer) error {
	if redisAddr == "" {
		own := miniredis.NewMiniRedis()
		own.ClockTTL(true) // keys expire as time passes
		if err := own.Start(); err != nil {
			return err
		}
		defer own.Close()
		redisAddr = own.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: redisAddr})
	defer rdb.Close()
	reporter, err := top.New(rdb, top.WithPrefix(prefix), top.WithOutcomes(), top.WithUsage(),
		top.WithInterval(time.Second))
	if err != nil {
		return err
	}
	defer reporter.Close()
	// an answer takes seconds, so a decision may take one
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithPrefix(prefix), ginlimit.WithTimeout(time.Second),
		ginlimit.WithHeaders(ginlimit.RateLimitDraft), ginlimit.WithClientObserver(reporter.Observe))
	if err != nil {
		return err
	}
	defer limiter.Close()
	r, dryRun := router(limiter)
	if err := staff(r, limiter, rdb, password, dryRun); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	fmt.Fprintf(out, "Listening on %s, counting in Redis at %s under the prefix %s.\n", address, redisAddr, prefix)
	fmt.Fprintf(out, "Its keys: %s. Ask with one of them:\n"+
		"  curl -iN -H 'X-API-Key: alice' -d '{\"prompt\":\"Why?\",\"max_tokens\":400}' http://%s/v1/complete\n",
		keys(), address)
	fmt.Fprintf(out, "The page for staff: http://staff:%s@%s/staff/\n", password, address)
	if busy {
		traffic(ctx, address)
	}
	server := &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// router returns the gateway, and the switch that has it only try its limits.
func router(limiter *ginlimit.Limiter) (r *gin.Engine, dryRun *atomic.Bool) {
	gin.SetMode(gin.ReleaseMode)
	r, dryRun = gin.New(), new(atomic.Bool)
	r.Use(gin.Recovery())
	policy := func(name string, opts ...ginlimit.PolicyOption) *ginlimit.Policy {
		return must(limiter.Policy(name, opts...))
	}
	key, account := ginlimit.WithKey(ginlimit.ByHeader("X-API-Key")), ginlimit.WithKey(ginlimit.ByValue("account"))
	wait := ginlimit.WithQueue(4, 2*time.Second)
	cost, settle := ginlimit.WithCost(estimate), ginlimit.WithSettle(used)
	policies := []*ginlimit.Policy{
		policy("api key", key, ginlimit.PerMinute(60), ginlimit.InFlight(2), wait),
		policy("tokens", key, ginlimit.PerMinute(6000),
			ginlimit.PerCalendar(100_000, ginlimit.CalendarMonth(nil, 1)), cost, settle,
			ginlimit.WithHeaders(ginlimit.XRateLimit|ginlimit.RateLimitDraft)),
		policy("user", ginlimit.WithKey(ginlimit.ByValue("user")), ginlimit.InFlight(3), wait),
		policy("account", account, ginlimit.InFlight(4), wait),
		// The users of an account share the tokens that the upstream allows it.
		policy("upstream", account, ginlimit.PerMinute(9000).WithBurst(16_000), // 8 × 1,000 for each of two
			ginlimit.WithShares(func(c *gin.Context) (string, int) { return c.GetString("user"), 1 }), cost, settle),
	}
	r.POST("/v1/complete", authenticate, parse, tried(dryRun, policies...), complete)
	return r, dryRun
}

// must returns a policy, or ends the program with what is wrong with its options.
func must(p *ginlimit.Policy, err error) *ginlimit.Policy {
	if err != nil {
		log.Fatal(err)
	}
	return p
}

func authenticate(c *gin.Context) {
	key, known := apiKeys[c.GetHeader("X-API-Key")]
	if !known {
		c.AbortWithStatusJSON(http.StatusUnauthorized, gin.H{"error": "X-API-Key: want one of " + keys()})
	}
	c.Set("user", key.user)
	c.Set("account", key.account)
}

type request struct {
	Prompt    string `json:"prompt"`
	MaxTokens int    `json:"max_tokens" binding:"min=1,max=1000"`
}

func parse(c *gin.Context) {
	c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, 1<<20)
	req := request{}
	if c.ShouldBindJSON(&req) != nil || strings.TrimSpace(req.Prompt) == "" {
		c.AbortWithStatusJSON(http.StatusBadRequest, gin.H{"error": "want a prompt, and max_tokens from 1 to 1000"})
		return
	}
	c.Set("request", req)
}

// promptTokens is about what a prompt costs: four letters are a token.
func promptTokens(prompt string) int { return 1 + len(prompt)/4 }

// estimate is the most that a request may use. So much must be left of each limit on tokens.
func estimate(c *gin.Context) int {
	req := c.MustGet("request").(request)
	return promptTokens(req.Prompt) + req.MaxTokens
}

// used is what the request has really used, also if the client has left in the middle of the answer.
func used(c *gin.Context) int { return c.GetInt("used") }

// complete streams the upstream's answer, and counts its tokens as they come.
func complete(c *gin.Context) {
	req := c.MustGet("request").(request)
	tokens := promptTokens(req.Prompt)
	c.Set("used", tokens)
	for word := range upstream(c.Request.Context(), req) {
		tokens++
		c.Set("used", tokens)
		c.SSEvent("token", word)
		c.Writer.Flush()
	}
	c.SSEvent("usage", tokens)
}

// upstream is a model that says some of the prompt's words again, until ctx ends.
func upstream(ctx context.Context, req request) iter.Seq[string] {
	words := strings.Fields(req.Prompt)
	return func(yield func(string) bool) {
		for range 1 + mathrand.N(req.MaxTokens) {
			if ctx.Err() != nil || !yield(words[mathrand.N(len(words))]) {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
}
