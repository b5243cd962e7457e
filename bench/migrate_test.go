package bench

import (
	"log/slog"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/JGLTechnologies/gin-rate-limit"
	"github.com/didip/tollbooth/v8"
	"github.com/gin-gonic/gin"
	"github.com/go-redis/redis_rate/v10"
	"github.com/ulule/limiter/v3"
	ululegin "github.com/ulule/limiter/v3/drivers/middleware/gin"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/bench/internal/redistest"
)

// TestMigrationBlocksAreCode looks whether every Go block of the notes is a part of the applications.
func TestMigrationBlocksAreCode(t *testing.T) {
	code, err := os.ReadFile("migrate_applications_test.go")
	if err != nil {
		t.Fatal(err)
	}
	notes, err := os.ReadFile("../docs/migration.md")
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
			t.Errorf("not in migrate_applications_test.go:\n%s", block)
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

// TestMigrationAllowsAsMany sends the same requests before and after. Both use one Redis, which also shows
// that what was counted before is not known after.
func TestMigrationAllowsAsMany(t *testing.T) {
	for _, m := range moves {
		t.Run(m.name, func(t *testing.T) {
			rdb := redistest.Connect(t, redistest.Start(t))
			before, after := newRouter(t), newRouter(t)
			must(t, m.before(before, rdb))
			must(t, m.after(after, patientLimiter(t, rdb)))
			for name, router := range map[string]*gin.Engine{"before": before, "after": after} {
				first := get(router, "203.0.113.7")
				if name == "before" {
					requireFields(t, first, m.fields)
				}
				if allowed := 1 + count(router, 21, "203.0.113.7", http.StatusOK); allowed != 20 {
					t.Errorf("%s: %d of 22 requests allowed, want 20", name, allowed)
				}
				if denial := get(router, "203.0.113.7"); denial.Code != http.StatusTooManyRequests {
					t.Errorf("%s: a denial is %d", name, denial.Code)
				}
				if another := get(router, "203.0.113.8"); another.Code != http.StatusOK {
					t.Errorf("%s: another client: %d", name, another.Code)
				}
			}
		})
	}
}

// TestMigrationOfAStoppedRedis stops Redis under the application, before and after. Where it is stopped, ulule makes no
// store.
func TestMigrationOfAStoppedRedis(t *testing.T) {
	for _, m := range moves {
		if m.withoutRedis == 0 {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			rdb := impatient(t, redistest.Start(t))
			before, after := newRouter(t), newRouter(t)
			must(t, m.before(before, rdb))
			limiter, err := oneLimiter(rdb)
			must(t, err)
			defer limiter.Close()
			must(t, m.after(after, limiter))
			stop(t, rdb)

			if err := ululeBefore(newRouter(t), rdb); err == nil {
				t.Error("ulule: there is a store")
			}
			another, err := oneLimiter(rdb)
			must(t, err)
			defer another.Close()
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

// TestMigrationSideBySide runs both until the new one decides.
func TestMigrationSideBySide(t *testing.T) {
	for _, row := range []struct {
		name string
		old  int64 // per hour
		log  int   // lines
	}{{"as many", 20, 0}, {"fewer", 15, 5}} {
		t.Run(row.name, func(t *testing.T) {
			rdb := redistest.Connect(t, redistest.Start(t))
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
		})
	}
}

// TestMigrationOfCalls is that of redis_rate's methods, and of what the notes say of their results.
func TestMigrationOfCalls(t *testing.T) {
	ctx, rdb := t.Context(), redistest.Connect(t, redistest.Start(t))
	before := redis_rate.NewLimiter(rdb)
	for i := range 22 {
		was, err := redisRateCallBefore(ctx, before)
		must(t, err)
		is, err := redisRateCallAfter(ctx, patientLimiter(t, rdb)) // which makes the policy
		must(t, err)
		if was != is || is != (i < 20) {
			t.Errorf("call %d: before %v, after %v", i+1, was, is)
		}
	}

	policy := func(limit ginlimit.Limit) *ginlimit.Policy {
		p, err := patientLimiter(t, rdb).Policy("calls", limit)
		must(t, err)
		return p
	}
	if r, err := before.Allow(ctx, "zero", redis_rate.PerHour(0)); err == nil {
		t.Errorf("redis_rate: a rate of 0 is %+v, want an error", r)
	}
	if r, err := policy(ginlimit.PerHour(0)).Allow(ctx, "zero"); err != nil || r.Allowed {
		t.Errorf("ginlimit: a rate of 0 is %+v, %v, want a denial", r, err)
	}

	wasNoBurst, err := before.Allow(ctx, "no burst", redis_rate.Limit{Rate: 20, Period: time.Hour})
	must(t, err)
	isNoBurst, err := policy(ginlimit.Per(20, time.Hour)).Allow(ctx, "no burst")
	must(t, err)
	if wasNoBurst.Allowed != 0 || !isNoBurst.Allowed || isNoBurst.Remaining != 19 {
		t.Errorf("no burst: before %+v, after %+v", wasNoBurst, isNoBurst)
	}

	wasTooMany, err := before.AllowN(ctx, "too many", redis_rate.PerHour(20), 21)
	must(t, err)
	isTooMany, err := policy(ginlimit.PerHour(20)).AllowN(ctx, "too many", 21)
	must(t, err)
	if wasTooMany.Allowed != 0 || wasTooMany.RetryAfter <= 0 || isTooMany.Allowed ||
		isTooMany.RetryAfter != ginlimit.Never {
		t.Errorf("more than the burst: before %+v, after %+v", wasTooMany, isTooMany)
	}

	wasSome, err := before.AllowAtMost(ctx, "some", redis_rate.PerHour(20), 30)
	must(t, err)
	isSome, err := policy(ginlimit.PerHour(20)).AllowUpTo(ctx, "some", 30)
	must(t, err)
	if wasSome.Allowed != 20 || isSome.Granted != 20 || wasSome.RetryAfter != -1 || isSome.RetryAfter != 0 {
		t.Errorf("as many as fit: before %+v, after %+v", wasSome, isSome)
	}
}

// TestMigrationOfRoutes counts each apart, as JGL does without a KeyFunc.
func TestMigrationOfRoutes(t *testing.T) {
	rdb, before, after := redistest.Connect(t, redistest.Start(t)), newRouter(t), newRouter(t)
	store := ratelimit.RedisStore(&ratelimit.RedisOptions{RedisClient: rdb, Rate: time.Hour, Limit: 20})
	before.Use(ratelimit.RateLimiter(store, nil))
	jglDefaultKeyAfter(after, patientLimiter(t, rdb))
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
}

// TestMigrationSaysWhatPeersDo counts how many of 25 requests they allow.
func TestMigrationSaysWhatPeersDo(t *testing.T) {
	rdb := redistest.Connect(t, redistest.Start(t))
	store, err := ululeredis.NewStore(rdb)
	must(t, err)
	ulule := func(perHour int64) gin.HandlerFunc {
		return ululegin.NewMiddleware(limiter.New(store, limiter.Rate{Period: time.Hour, Limit: perHour}))
	}
	half := ratelimit.RedisStore(&ratelimit.RedisOptions{RedisClient: rdb, Rate: time.Second / 2, Limit: 1})
	lmt := tollbooth.NewLimiter(20.0/3600, nil) // without SetIPLookup
	for name, row := range map[string]struct {
		handlers []gin.HandlerFunc
		want     int
	}{
		"ulule counts two limiters of a store together": {[]gin.HandlerFunc{ulule(20), ulule(10)}, 5},
		"JGL limits nobody to one in half a second":     {[]gin.HandlerFunc{ratelimit.RateLimiter(half, nil)}, 25},
		"tollbooth limits nobody until it is told where the address is": {[]gin.HandlerFunc{func(c *gin.Context) {
			if tollbooth.LimitByRequest(lmt, c.Writer, c.Request) != nil {
				c.AbortWithStatus(http.StatusTooManyRequests)
			}
		}}, 25},
	} {
		router := newRouter(t)
		router.Use(row.handlers...)
		if allowed := count(router, 25, "203.0.113.7", http.StatusOK); allowed != row.want {
			t.Errorf("%s: %d of 25 allowed, want %d", name, allowed, row.want)
		}
	}
}
