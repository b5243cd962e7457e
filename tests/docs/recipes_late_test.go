package docs_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// Handlers that reserve themselves.

func accountsRecipe(router *gin.Engine, limiter *ginlimit.Limiter, ask func(account string) (string, error)) {
	accounts := must(limiter.Policy("account", ginlimit.PerMinute(600), ginlimit.InFlight(4)))
	router.POST("/generate", limiter.Handler("generate", ginlimit.PerMinute(60)), func(c *gin.Context) {
		for _, account := range []string{"first", "second"} {
			work, err := accounts.Reserve(c.Request.Context(), account, 1)
			if err != nil || !work.OK() {
				continue
			}
			defer work.Release()
			answer, err := ask(account)
			if err == nil {
				c.String(http.StatusOK, answer)
				return
			}
			_ = work.Cancel(c.Request.Context()) // it did no work: the token and the slot are free again
		}
		c.String(http.StatusServiceUnavailable, "all accounts are busy")
	})
}

// TestASecondAccountServes if the first one is busy or fails, and nothing is left taken of one that did no work.
func TestASecondAccountServes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		router, limiter := signedIn(), local(t)
		broken := map[string]bool{}
		accountsRecipe(router, limiter, func(account string) (string, error) {
			if broken[account] {
				return "", errors.New("it is down")
			}
			time.Sleep(time.Second)
			return "from " + account, nil
		})
		var mu sync.Mutex
		answers := map[string]int{}
		serve := func(n int) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					body := send(router, http.MethodPost, "/generate").Body.String()
					mu.Lock()
					defer mu.Unlock()
					answers[body]++
				})
			}
			all.Wait()
		}
		serve(9)
		require.Equal(t, map[string]int{"from first": 4, "from second": 4, "all accounts are busy": 1}, answers)
		clear(answers)
		broken["first"] = true
		serve(3)
		require.Equal(t, map[string]int{"from second": 3}, answers)
		clear(answers)
		broken["second"] = true
		serve(3)
		require.Equal(t, map[string]int{"all accounts are busy": 3}, answers)
		require.Zero(t, limiter.Stats().Slots)
	})
}

func streamRecipe(router *gin.Engine, limiter *ginlimit.Limiter) {
	models := must(limiter.Policy("model", ginlimit.InFlight(2), ginlimit.WithQueue(10, time.Minute)))
	router.GET("/stream", func(c *gin.Context) {
		ctx, leave := context.WithCancel(c.Request.Context())
		work, granted, failed := (*ginlimit.Reservation)(nil), make(chan struct{}), error(nil)
		go func() {
			defer close(granted)
			work, failed = models.Reserve(ctx, "all", 1)
		}()
		defer func() { // also if a write fails: the slot may have come meanwhile
			leave()
			<-granted
			work.Release()
		}()
		c.Header("Content-Type", "text/event-stream")
		for ping := time.NewTicker(15 * time.Second); ; {
			select {
			case <-ping.C:
				if _, err := c.Writer.WriteString(": waiting\n\n"); err != nil {
					return
				}
				c.Writer.Flush()
				continue
			case <-granted:
			}
			switch {
			case failed != nil:
				c.SSEvent("error", "not now")
			case work.OK():
				c.SSEvent("answer", "done")
				time.Sleep(c.MustGet("lasts").(time.Duration))
			case work.Result().Cause == ginlimit.CauseQueueFull:
				c.SSEvent("error", "too many wait")
			default:
				c.SSEvent("error", "waited in vain")
			}
			return
		}
	})
}

// gone is a client that has gone away after some bytes.
type gone struct {
	*httptest.ResponseRecorder
	after int
}

// Write implements [http.ResponseWriter].
func (w *gone) Write(p []byte) (int, error) { return w.WriteString(string(p)) }

// WriteString implements io.StringWriter.
func (w *gone) WriteString(s string) (int, error) {
	if w.after -= len(s); w.after < 0 {
		return 0, errors.New("the client has gone")
	}
	return w.ResponseRecorder.WriteString(s)
}

// TestAStreamSaysThatItWaits, and one whose client has gone leaves no slot and no place behind.
func TestAStreamSaysThatItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		router, limiter := gin.New(), local(t)
		lasts := 40 * time.Second
		router.Use(func(c *gin.Context) { c.Set("lasts", lasts) })
		streamRecipe(router, limiter)
		var all sync.WaitGroup
		stream := func(after int) *httptest.ResponseRecorder {
			rec := httptest.NewRecorder()
			all.Go(func() {
				router.ServeHTTP(&gone{rec, after}, httptest.NewRequest(http.MethodGet, "/stream", nil))
			})
			synctest.Wait()
			return rec
		}
		var recs []*httptest.ResponseRecorder
		for range 2 {
			recs = append(recs, stream(1000))
		}
		left := stream(15) // one comment
		for range 10 {
			recs = append(recs, stream(1000))
		}
		all.Wait()
		require.Equal(t, ": waiting\n\n", left.Body.String())
		counts := map[string]int{}
		for _, rec := range recs {
			body := rec.Body.String()
			counts[body[strings.LastIndex(body, "data:"):]]++
		}
		require.Equal(t, map[string]int{"data:done\n\n": 4, "data:too many wait\n\n": 1, "data:waited in vain\n\n": 7},
			counts)
		require.Contains(t, recs[2].Body.String(), ": waiting\n\n: waiting\n\n")
		require.Zero(t, limiter.Stats().Slots)
	})
}
