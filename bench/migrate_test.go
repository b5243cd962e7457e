package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/JGLTechnologies/gin-rate-limit"
	"github.com/didip/tollbooth/v8"
	tollboothlimiter "github.com/didip/tollbooth/v8/limiter"
	"github.com/gin-gonic/gin"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/ulule/limiter/v3"
	ululegin "github.com/ulule/limiter/v3/drivers/middleware/gin"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/ginlimit/ginlimit"
)

// The functions down to the tests are what docs/migrate.md shows.

func oneLimiter(rdb redis.UniversalClient) (*ginlimit.Limiter, error) {
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		return nil, err
	}
	return limiter, nil
}

func ululeBefore(router *gin.Engine, rdb *redis.Client) error {
	store, err := ululeredis.NewStoreWithOptions(rdb, limiter.StoreOptions{Prefix: "api"})
	if err != nil {
		return err
	}
	rate, err := limiter.NewRateFromFormatted("20-H")
	if err != nil {
		return err
	}
	router.Use(ululegin.NewMiddleware(limiter.New(store, rate)))
	return nil
}

func ululeAfter(router *gin.Engine, limiter *ginlimit.Limiter) error {
	limit, err := ginlimit.ParseLimit("20/h") // or ginlimit.PerHour(20)
	if err != nil {
		return err
	}
	router.Use(limiter.Handler(limit, ginlimit.WithName("api"),
		ginlimit.WithAlgorithm(ginlimit.FixedWindow))) // or a token bucket, without this line
	return nil
}

// fromUlule reads "100-M" as "100/m".
func fromUlule(text string) (ginlimit.Limit, error) {
	return ginlimit.ParseLimit(strings.ToLower(strings.Replace(text, "-", "/", 1)))
}

func ululeFields() ginlimit.Option {
	return ginlimit.WithHeaderFunc(func(h http.Header, r ginlimit.Result) {
		reset := time.Now().Add(r.ResetAfter)
		h.Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	})
}

func redisRateBefore(router *gin.Engine, rdb *redis.Client) error {
	limiter := redis_rate.NewLimiter(rdb)
	router.Use(func(c *gin.Context) {
		r, err := limiter.Allow(c.Request.Context(), "api:"+c.ClientIP(), redis_rate.PerHour(20))
		if err != nil {
			c.AbortWithStatus(http.StatusInternalServerError)
			return
		}
		c.Header("X-RateLimit-Remaining", strconv.Itoa(r.Remaining))
		if r.Allowed == 0 {
			c.Header("Retry-After", strconv.Itoa(int(r.RetryAfter/time.Second)))
			c.AbortWithStatus(http.StatusTooManyRequests)
		}
	})
	return nil
}

func redisRateAfter(router *gin.Engine, limiter *ginlimit.Limiter) error {
	router.Use(limiter.Handler(ginlimit.PerHour(20), ginlimit.WithName("api")))
	return nil
}

func redisRateCallBefore(ctx context.Context, limiter *redis_rate.Limiter) (bool, error) {
	r, err := limiter.Allow(ctx, "user:123", redis_rate.PerHour(20))
	if err != nil {
		return false, err
	}
	return r.Allowed > 0, nil
}

func redisRateCallAfter(ctx context.Context, limiter *ginlimit.Limiter) (bool, error) {
	r, err := limiter.Allow(ctx, "user:123", ginlimit.PerHour(20))
	if err != nil {
		return false, err
	}
	return r.Allowed, nil
}

func jglBefore(router *gin.Engine, rdb *redis.Client) error {
	store := ratelimit.RedisStore(&ratelimit.RedisOptions{
		RedisClient: rdb,
		Rate:        time.Hour,
		Limit:       20,
	})
	router.Use(ratelimit.RateLimiter(store, &ratelimit.Options{
		KeyFunc: func(c *gin.Context) string { return c.ClientIP() },
	}))
	return nil
}

func jglAfter(router *gin.Engine, limiter *ginlimit.Limiter) error {
	router.Use(limiter.Handler(ginlimit.PerHour(20), ginlimit.WithName("api")))
	return nil
}

func jglDefaultKeyAfter(router *gin.Engine, limiter *ginlimit.Limiter) {
	route := func(c *gin.Context) (string, error) { return "route " + c.FullPath(), nil } // never empty
	router.Use(limiter.Handler(ginlimit.PerHour(20), ginlimit.WithName("api"),
		ginlimit.WithKey(ginlimit.ByAll(ginlimit.ByClientIP, route))))
}

func tollboothBefore(router *gin.Engine, _ *redis.Client) error {
	lmt := tollbooth.NewLimiter(20.0/3600, nil) // per second
	lmt.SetBurst(20).SetIgnoreURL(true)
	lmt.SetIPLookup(tollboothlimiter.IPLookup{Name: "RemoteAddr"})
	router.Use(func(c *gin.Context) {
		if refused := tollbooth.LimitByRequest(lmt, c.Writer, c.Request); refused != nil {
			c.Data(refused.StatusCode, lmt.GetMessageContentType(), []byte(refused.Message))
			c.Abort()
		}
	})
	return nil
}

func tollboothAfter(router *gin.Engine, limiter *ginlimit.Limiter) error {
	router.Use(limiter.Handler(ginlimit.PerHour(20), ginlimit.WithName("api")))
	return nil
}

func localLimiter() (*ginlimit.Limiter, error) {
	limiter, err := ginlimit.NewLocal()
	if err != nil {
		return nil, err
	}
	return limiter, nil
}

func sideBySide(router *gin.Engine, limiter *ginlimit.Limiter, old gin.HandlerFunc, logger *slog.Logger) {
	router.Use(func(c *gin.Context) {
		c.Next()
		refused := c.Writer.Status() == http.StatusTooManyRequests
		if r, decided := ginlimit.FromContext(c); decided && r.Allowed == refused {
			logger.Info("the limiters differ", "path", c.FullPath(), "refused by the old one", refused)
		}
	})
	router.Use(limiter.Handler(ginlimit.PerHour(20), ginlimit.WithName("api"), ginlimit.WithDryRun()))
	router.Use(old)
}

// A move is an application before and after it came to ginlimit, and what its answers say: header fields and, as a
// regular expression, the value of each.
type move struct {
	name                    string
	before                  func(*gin.Engine, *redis.Client) error
	after                   func(*gin.Engine, *ginlimit.Limiter) error
	firstBefore, firstAfter map[string]string // of the first request
	refusalBefore           map[string]string
	refusalAfter            map[string]string
	withoutRedis            int // the status before of a request without Redis; 0 where there is none
}

// Patterns of a header's value. A test may be a hundred seconds late.
const (
	unixTime    = `^[1-9][0-9]{9}$`
	untilHour   = `^(3600|35[0-9]{2})$`
	untilToken  = `^(180|1[0-7][0-9]|[89][0-9])$` // 20 an hour
	problemType = `^application/problem\+json$`
	plainText   = `^text/plain; charset=utf-8$`
)

var (
	bucketFirst = map[string]string{
		"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^19$", "X-Ratelimit-Reset": untilToken,
	}
	bucketRefusal = map[string]string{
		"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^0$", "X-Ratelimit-Reset": untilHour, "Retry-After": untilToken,
		"Cache-Control": "^no-store$", "Content-Type": problemType, "Content-Length": "^[0-9]+$",
	}
)

var moves = []move{
	{
		name: "ulule", before: ululeBefore, after: ululeAfter,
		firstBefore: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^19$", "X-Ratelimit-Reset": unixTime,
		},
		firstAfter: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^19$", "X-Ratelimit-Reset": untilHour,
		},
		refusalBefore: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^0$", "X-Ratelimit-Reset": unixTime, "Content-Type": plainText,
		},
		refusalAfter: map[string]string{
			"X-Ratelimit-Limit": "^20$", "X-Ratelimit-Remaining": "^0$", "X-Ratelimit-Reset": untilHour, "Retry-After": untilHour,
			"Cache-Control": "^no-store$", "Content-Type": problemType, "Content-Length": "^[0-9]+$",
		},
		withoutRedis: http.StatusInternalServerError,
	},
	{
		name: "redis_rate", before: redisRateBefore, after: redisRateAfter,
		firstBefore:   map[string]string{"X-Ratelimit-Remaining": "^19$"},
		firstAfter:    bucketFirst,
		refusalBefore: map[string]string{"X-Ratelimit-Remaining": "^0$", "Retry-After": untilToken},
		refusalAfter:  bucketRefusal,
		withoutRedis:  http.StatusInternalServerError,
	},
	{
		name: "JGL", before: jglBefore, after: jglAfter,
		firstBefore: map[string]string{
			"X-Rate-Limit-Limit": "^20$", "X-Rate-Limit-Remaining": "^19$", "X-Rate-Limit-Reset": unixTime,
		},
		firstAfter: bucketFirst,
		refusalBefore: map[string]string{
			"X-Rate-Limit-Limit": "^20$", "X-Rate-Limit-Remaining": "^0$", "X-Rate-Limit-Reset": unixTime, "Content-Type": plainText,
		},
		refusalAfter: bucketRefusal,
		withoutRedis: http.StatusOK,
	},
	{
		name: "tollbooth", before: tollboothBefore, after: tollboothAfter,
		firstBefore: map[string]string{
			"X-Rate-Limit-Limit": `^0\.01$`, "X-Rate-Limit-Duration": "^1$", "X-Rate-Limit-Request-Remote-Addr": "^203",
			"Ratelimit-Limit": "^0$", "Ratelimit-Remaining": "^19$", "Ratelimit-Reset": "^1$",
		},
		firstAfter: bucketFirst,
		refusalBefore: map[string]string{
			"X-Rate-Limit-Limit": `^0\.01$`, "X-Rate-Limit-Duration": "^1$", "X-Rate-Limit-Request-Remote-Addr": "^203",
			"Ratelimit-Limit": "^0$", "Ratelimit-Remaining": "^0$", "Ratelimit-Reset": "^1$", "Content-Type": plainText,
			"Content-Length": "^[0-9]+$",
		},
		refusalAfter: bucketRefusal,
	},
}

// TestMigrationBlocksAreCode looks whether every Go block of the notes is a part of this file.
func TestMigrationBlocksAreCode(t *testing.T) {
	code, err := os.ReadFile("migrate_test.go")
	if err != nil {
		t.Fatal(err)
	}
	notes, err := os.ReadFile("../docs/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for i, part := range strings.Split(string(notes), "```") {
		block, isGo := strings.CutPrefix(part, "go\n")
		if !isGo || i%2 == 0 {
			continue
		}
		blocks++
		if !strings.Contains(unindented(string(code)), unindented(block)) {
			t.Errorf("not in this file:\n%s", block)
		}
	}
	if blocks < 2*len(moves) {
		t.Errorf("%d blocks of Go for %d libraries", blocks, len(moves))
	}
}

// unindented returns code without leading and blank space, as blocks are not indented as functions are.
func unindented(code string) string {
	var out strings.Builder
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// TestMigrationAllowsAsMany sends the same requests before and after. That both have one Redis shows besides that what
// was counted before is not known after.
func TestMigrationAllowsAsMany(t *testing.T) {
	for _, m := range moves {
		t.Run(m.name, func(t *testing.T) {
			rdb := connect(t, startRedis(t))
			before, after := newRouter(t), newRouter(t)
			must(t, m.before(before, rdb))
			must(t, m.after(after, patientLimiter(t, rdb)))
			for _, app := range []struct {
				name           string
				router         *gin.Engine
				first, refusal map[string]string
			}{{"before", before, m.firstBefore, m.refusalBefore}, {"after", after, m.firstAfter, m.refusalAfter}} {
				first := get(app.router, "203.0.113.7")
				requireAnswer(t, app.name+", the first request", first, http.StatusOK, app.first)
				if allowed := 1 + count(app.router, 21, "203.0.113.7", http.StatusOK); allowed != 20 {
					t.Errorf("%s: %d of 22 requests allowed, want 20", app.name, allowed)
				}
				refusal := get(app.router, "203.0.113.7")
				requireAnswer(t, app.name+", a refusal", refusal, http.StatusTooManyRequests, app.refusal)
				another := get(app.router, "203.0.113.8")
				requireAnswer(t, app.name+", another client", another, http.StatusOK, app.first)
			}
		})
	}
}

// TestMigrationOfAStoppedRedis stops Redis under the application, before and after.
func TestMigrationOfAStoppedRedis(t *testing.T) {
	for _, m := range moves {
		if m.withoutRedis == 0 {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			rdb := impatient(t, startRedis(t))
			before, after := newRouter(t), newRouter(t)
			must(t, m.before(before, rdb))
			limiter, err := oneLimiter(rdb)
			must(t, err)
			defer limiter.Close()
			must(t, m.after(after, limiter))
			stop(t, rdb)

			if got := count(before, 25, "203.0.113.7", m.withoutRedis); got != 25 {
				t.Errorf("before: %d of 25 answers were %d", got, m.withoutRedis)
			}
			answers := 0
			for i := range 25 {
				answer, want := get(after, "203.0.113.7"), http.StatusOK
				if i >= 20 {
					want = http.StatusTooManyRequests
				}
				if answer.Code == want && answer.Header().Get("X-RateLimit-Status") == "degraded" {
					answers++
				}
			}
			if answers != 25 {
				t.Errorf("after: %d of 25 answers were as 20 an hour have them, and degraded", answers)
			}
		})
	}
}

// TestMigrationStartsWithoutRedis makes the limiters while there is no Redis.
func TestMigrationStartsWithoutRedis(t *testing.T) {
	rdb := impatient(t, startRedis(t))
	stop(t, rdb)
	if err := ululeBefore(newRouter(t), rdb); err == nil {
		t.Error("ulule: there is a store")
	}
	limiter, err := oneLimiter(rdb)
	must(t, err)
	defer limiter.Close()
	router := newRouter(t)
	must(t, ululeAfter(router, limiter))
	if answer := get(router, "203.0.113.7"); answer.Code != http.StatusOK {
		t.Errorf("ginlimit: %d", answer.Code)
	}
}

// TestMigrationSideBySide runs both until the new one decides.
func TestMigrationSideBySide(t *testing.T) {
	for _, row := range []struct {
		name string
		old  int64 // per hour
		log  int   // lines
	}{{"as many", 20, 0}, {"fewer", 15, 5}} {
		t.Run(row.name, func(t *testing.T) {
			rdb := connect(t, startRedis(t))
			store, err := ululeredis.NewStore(rdb)
			must(t, err)
			old := ululegin.NewMiddleware(limiter.New(store, limiter.Rate{Period: time.Hour, Limit: row.old}))
			limiter, router, log := patientLimiter(t, rdb), newRouter(t), &strings.Builder{}
			sideBySide(router, limiter, old, slog.New(slog.NewTextHandler(log, nil)))

			if allowed := count(router, 22, "203.0.113.7", http.StatusOK); allowed != int(row.old) {
				t.Errorf("%d requests allowed, want %d: the old one decides", allowed, row.old)
			}
			if lines := strings.Count(log.String(), "the limiters differ"); lines != row.log {
				t.Errorf("%d lines in the log, want %d:\n%s", lines, row.log, log)
			}
			after := newRouter(t)
			must(t, redisRateAfter(after, limiter))
			if answer := get(after, "203.0.113.7"); answer.Code != http.StatusTooManyRequests {
				t.Errorf("then the new one decides, which has counted 20: %d", answer.Code)
			}
			if answer := get(after, "203.0.113.8"); answer.Code != http.StatusOK {
				t.Errorf("another client: %d", answer.Code)
			}
		})
	}
}

// TestMigrationOfUluleTexts reads limits as ulule does.
func TestMigrationOfUluleTexts(t *testing.T) {
	for _, text := range []string{"5-S", "10-M", "100-m", "1000-H", "2000-D"} {
		rate, err := limiter.NewRateFromFormatted(text)
		must(t, err)
		limit, err := fromUlule(text)
		must(t, err)
		if want := (ginlimit.Limit{Rate: int(rate.Limit), Period: rate.Period}); limit != want {
			t.Errorf("%s: %s, want %s", text, limit, want)
		}
	}
	for _, text := range []string{"", "5", "5-W", "x-M"} {
		if _, err := limiter.NewRateFromFormatted(text); err == nil {
			t.Errorf("ulule reads %q", text)
		}
		if _, err := fromUlule(text); err == nil {
			t.Errorf("fromUlule reads %q", text)
		}
	}
}

// TestMigrationKeepsUluleReset has X-RateLimit-Reset be the time that it was before.
func TestMigrationKeepsUluleReset(t *testing.T) {
	router := newRouter(t)
	router.Use(patientLimiter(t, connect(t, startRedis(t))).Handler(ginlimit.PerHour(20),
		ginlimit.WithAlgorithm(ginlimit.FixedWindow), ululeFields()))
	start := time.Now().Unix()
	reset, err := strconv.ParseInt(get(router, "203.0.113.7").Header().Get("X-RateLimit-Reset"), 10, 64)
	must(t, err)
	if end := time.Now().Unix(); reset < start+3599 || reset > end+3600 {
		t.Errorf("reset at %d, want an hour after %d to %d", reset, start, end)
	}
}

// TestMigrationOfCalls is that of redis_rate's methods, and of what the notes say of their results.
func TestMigrationOfCalls(t *testing.T) {
	ctx, rdb := t.Context(), connect(t, startRedis(t))
	before, after := redis_rate.NewLimiter(rdb), patientLimiter(t, rdb)
	for i := range 22 {
		was, err := redisRateCallBefore(ctx, before)
		must(t, err)
		is, err := redisRateCallAfter(ctx, after)
		must(t, err)
		if was != is || is != (i < 20) {
			t.Errorf("call %d: before %v, after %v", i+1, was, is)
		}
	}

	prohibits := ginlimit.PerHour(0)
	if r, err := before.Allow(ctx, "zero", redis_rate.PerHour(0)); err == nil {
		t.Errorf("redis_rate: a rate of 0 is %+v, want an error", r)
	}
	if r, err := after.Allow(ctx, "zero", prohibits); err != nil || r.Allowed {
		t.Errorf("ginlimit: a rate of 0 is %+v, %v, want a refusal", r, err)
	}

	wasNoBurst, err := before.Allow(ctx, "no burst", redis_rate.Limit{Rate: 20, Period: time.Hour})
	must(t, err)
	isNoBurst, err := after.Allow(ctx, "no burst", ginlimit.Limit{Rate: 20, Period: time.Hour})
	must(t, err)
	if wasNoBurst.Allowed != 0 || !isNoBurst.Allowed || isNoBurst.Remaining != 19 {
		t.Errorf("no burst: before %+v, after %+v", wasNoBurst, isNoBurst)
	}

	wasTooMany, err := before.AllowN(ctx, "too many", redis_rate.PerHour(20), 21)
	must(t, err)
	isTooMany, err := after.AllowN(ctx, "too many", 21, ginlimit.PerHour(20))
	must(t, err)
	if wasTooMany.Allowed != 0 || wasTooMany.RetryAfter <= 0 || isTooMany.Allowed || isTooMany.RetryAfter >= 0 {
		t.Errorf("more than the burst: before %+v, after %+v", wasTooMany, isTooMany)
	}

	wasSome, err := before.AllowAtMost(ctx, "some", redis_rate.PerHour(20), 30)
	must(t, err)
	isSome, err := after.AllowUpTo(ctx, "some", 30, ginlimit.PerHour(20))
	must(t, err)
	if wasSome.Allowed != 20 || isSome.Granted != 20 || wasSome.RetryAfter != -1 || isSome.RetryAfter != 0 {
		t.Errorf("as many as fit: before %+v, after %+v", wasSome, isSome)
	}
}

// TestMigrationOfKeys is that of whom a request is counted for.
func TestMigrationOfKeys(t *testing.T) {
	rdb := connect(t, startRedis(t))

	t.Run("an IPv6 client is its address there, its /64 here", func(t *testing.T) {
		for _, m := range moves {
			before, after := newRouter(t), newRouter(t)
			must(t, m.before(before, rdb))
			must(t, m.after(after, patientLimiter(t, rdb, ginlimit.WithPrefix(m.name))))
			for _, router := range []*gin.Engine{before, after} {
				if allowed := count(router, 20, "2001:db8::1", http.StatusOK); allowed != 20 {
					t.Errorf("%s: %d of 20 allowed", m.name, allowed)
				}
			}
			want := http.StatusOK
			if m.name == "tollbooth" {
				want = http.StatusTooManyRequests // which counts by /64, too
			}
			if got := get(before, "2001:db8::2").Code; got != want {
				t.Errorf("%s, before: %d, want %d", m.name, got, want)
			}
			if got := get(after, "2001:db8::2").Code; got != http.StatusTooManyRequests {
				t.Errorf("%s, after: %d", m.name, got)
			}
		}
	})

	t.Run("two limiters of one store count together in ulule", func(t *testing.T) {
		store, err := ululeredis.NewStore(rdb)
		must(t, err)
		before, after := newRouter(t), newRouter(t)
		here := patientLimiter(t, rdb, ginlimit.WithPrefix("two"))
		for _, perHour := range []int{20, 10} {
			before.Use(ululegin.NewMiddleware(limiter.New(store, limiter.Rate{Period: time.Hour, Limit: int64(perHour)})))
			after.Use(here.Handler(ginlimit.PerHour(perHour), ginlimit.WithName(fmt.Sprint(perHour))))
		}
		if was, is := count(before, 20, "203.0.113.7", 200), count(after, 20, "203.0.113.7", 200); was != 5 || is != 10 {
			t.Errorf("before %d, after %d; want 5 and 10", was, is)
		}
	})

	t.Run("every route apart, as JGL has it without a KeyFunc", func(t *testing.T) {
		store := ratelimit.RedisStore(&ratelimit.RedisOptions{RedisClient: rdb, Rate: time.Hour, Limit: 20})
		before, after := newRouter(t), newRouter(t)
		before.Use(ratelimit.RateLimiter(store, nil))
		jglDefaultKeyAfter(after, patientLimiter(t, rdb, ginlimit.WithPrefix("routes")))
		for _, router := range []*gin.Engine{before, after} {
			router.GET("/a/:id", ok)
			router.GET("/b", ok)
			allowed := map[string]int{}
			for i := range 22 {
				for _, path := range []string{"/a/" + strconv.Itoa(i), "/b", "/nowhere"} {
					if answer := request(router, path, "203.0.113.7"); answer.Code < 429 { // 404 is served, too
						allowed[path[:2]]++
					}
				}
			}
			if want := map[string]int{"/a": 20, "/b": 20, "/n": 20}; !maps.Equal(allowed, want) {
				t.Errorf("%v, want %v", allowed, want)
			}
		}
	})

	t.Run("tollbooth v8 limits nobody until it is told where the address is", func(t *testing.T) {
		lmt, router := tollbooth.NewLimiter(20.0/3600, nil), newRouter(t)
		router.Use(func(c *gin.Context) {
			if tollbooth.LimitByRequest(lmt, c.Writer, c.Request) != nil {
				c.AbortWithStatus(http.StatusTooManyRequests)
			}
		})
		if allowed := count(router, 25, "203.0.113.7", http.StatusOK); allowed != 25 {
			t.Errorf("%d of 25 allowed", allowed)
		}
	})
}

// TestMigrationOfJGLTime has a client come every ten minutes: in JGL each request that is allowed starts the hour again.
func TestMigrationOfJGLTime(t *testing.T) {
	ctx, rdb, router := t.Context(), connect(t, startRedis(t)), newRouter(t)
	must(t, jglBefore(router, rdb))
	const since = "203.0.113.7ts"
	for i := range 24 {
		want := http.StatusOK
		if i >= 20 {
			want = http.StatusTooManyRequests
		}
		if got := get(router, "203.0.113.7").Code; got != want {
			t.Errorf("request %d: %d, want %d", i+1, got, want)
		}
		must(t, rdb.DecrBy(ctx, since, 600).Err()) // as if it had come ten minutes ago
	}
	must(t, rdb.DecrBy(ctx, since, 3600).Err())
	if got := get(router, "203.0.113.7").Code; got != http.StatusOK {
		t.Errorf("after an hour's pause: %d", got)
	}
}

// TestMigrationOfShortPeriods has one request per half a second.
func TestMigrationOfShortPeriods(t *testing.T) {
	rdb, before, after := connect(t, startRedis(t)), newRouter(t), newRouter(t)
	store := ratelimit.RedisStore(&ratelimit.RedisOptions{RedisClient: rdb, Rate: 500 * time.Millisecond, Limit: 1})
	before.Use(ratelimit.RateLimiter(store, nil))
	after.Use(patientLimiter(t, rdb).Handler(ginlimit.Limit{Rate: 1, Period: 500 * time.Millisecond}))
	start := time.Now()
	was, is := count(before, 20, "203.0.113.7", http.StatusOK), count(after, 20, "203.0.113.7", http.StatusOK)
	if most := 1 + int(time.Since(start)/(500*time.Millisecond)); was != 20 || is > most {
		t.Errorf("before %d of 20 allowed, want all; after %d, want no more than %d", was, is, most)
	}
}

// TestMigrationToLocal is tollbooth's without Redis.
func TestMigrationToLocal(t *testing.T) {
	limiter, err := localLimiter()
	must(t, err)
	defer limiter.Close()
	router := newRouter(t)
	must(t, tollboothAfter(router, limiter))
	requireAnswer(t, "the first request", get(router, "203.0.113.7"), http.StatusOK, bucketFirst)
	if allowed := count(router, 22, "203.0.113.7", http.StatusOK); allowed != 19 {
		t.Errorf("%d more allowed, want 19", allowed)
	}
}

// newRouter returns an engine that answers GET / when it has got its middleware, and recovers from panics.
func newRouter(t *testing.T) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	must(t, router.SetTrustedProxies(nil))
	router.Use(gin.RecoveryWithWriter(io.Discard))
	return router
}

func ok(c *gin.Context) { c.Status(http.StatusOK) }

// patientLimiter returns a limiter that has Redis decide, however busy the machine is.
func patientLimiter(t *testing.T, rdb *redis.Client, opts ...ginlimit.Option) *ginlimit.Limiter {
	limiter, err := ginlimit.NewLimiter(rdb, append(opts, ginlimit.WithTimeout(10*time.Second))...)
	must(t, err)
	t.Cleanup(func() { _ = limiter.Close() })
	return limiter
}

// impatient returns a client that tries once.
func impatient(t *testing.T, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// stop stops the server.
func stop(t *testing.T, rdb *redis.Client) {
	_ = rdb.ShutdownNoSave(t.Context()).Err() // it is the end of the connection
	for deadline := time.Now().Add(10 * time.Second); rdb.Ping(t.Context()).Err() == nil; {
		if time.Now().After(deadline) {
			t.Fatal("redis-server does not stop")
		}
	}
}

// get requests / for a client.
func get(router *gin.Engine, client string) *httptest.ResponseRecorder {
	if !slices.ContainsFunc(router.Routes(), func(r gin.RouteInfo) bool { return r.Path == "/" }) {
		router.GET("/", ok) // after its middleware
	}
	return request(router, "/", client)
}

func request(router *gin.Engine, path, client string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr = client + ":1234"
	if strings.Contains(client, ":") {
		r.RemoteAddr = "[" + client + "]:1234"
	}
	answer := httptest.NewRecorder()
	router.ServeHTTP(answer, r)
	return answer
}

// count sends n requests for / and returns how many were answered with the status.
func count(router *gin.Engine, n int, client string, status int) int {
	found := 0
	for range n {
		if get(router, client).Code == status {
			found++
		}
	}
	return found
}

// requireAnswer looks for the status, these header fields, and no others.
func requireAnswer(t *testing.T, name string, answer *httptest.ResponseRecorder, status int, fields map[string]string) {
	t.Helper()
	if answer.Code != status {
		t.Errorf("%s: %d, want %d", name, answer.Code, status)
	}
	got := slices.Sorted(maps.Keys(answer.Header()))
	if want := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("%s has the fields %q, want %q", name, got, want)
	}
	for field, pattern := range fields {
		if value := answer.Header().Get(field); !regexp.MustCompile(pattern).MatchString(value) {
			t.Errorf("%s: %s: %s, want %s", name, field, value, pattern)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
