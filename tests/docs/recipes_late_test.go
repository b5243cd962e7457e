package docs_test

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// Handlers that reserve themselves.

// accounts is a block of docs/guide.md, but for what asks upstream.
func accounts(router *gin.Engine, limiter *ginlimit.Limiter, ask func(account string) (string, error)) {
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

func TestAccountsAreThoseOfTheGuide(t *testing.T) {
	t.Parallel()
	var block string
	for _, code := range goBlocks(t, "docs/guide.md") {
		if strings.HasPrefix(code, "accounts := ") {
			block = regexp.MustCompile(`(?m)^\task := .*\n`).ReplaceAllString(code, "")
		}
	}
	_, own, _ := strings.Cut(testkit.Read(t, "tests/docs/recipes_late_test.go"), "\nfunc accounts(")
	_, own, _ = strings.Cut(own, "{\n")
	own, _, _ = strings.Cut(own, "\n}\n")
	require.Equal(t, unindented(own), unindented(block))
}

// TestASecondAccountServes if the first one is busy or fails, and nothing is left taken of one that did no work.
func TestASecondAccountServes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		router, limiter := signedIn(), local(t)
		broken := map[string]bool{}
		accounts(router, limiter, func(account string) (string, error) {
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
		reserved := make(chan *ginlimit.Reservation, 1) // nil after an error
		go func() { work, _ := models.Reserve(ctx, "all", 1); reserved <- work; close(reserved) }()
		defer func() { leave(); (<-reserved).Release() }() // of a slot that comes after the client has left
		c.Header("Content-Type", "text/event-stream")
		for ping := time.Tick(15 * time.Second); ; {
			select {
			case <-ping:
				if _, err := c.Writer.WriteString(": waiting\n\n"); err != nil {
					return
				}
				c.Writer.Flush()
			case work := <-reserved:
				defer work.Release()
				if work.OK() {
					c.SSEvent("answer", "done") // your model's
				} else {
					c.SSEvent("error", cmp.Or(work.Result().Cause.String(), "unavailable"))
				}
				return
			}
		}
	})
}

// streaming is a client that has gone away after some bytes.
type streaming struct {
	*httptest.ResponseRecorder
	after  int
	slow   time.Duration // reads a comment
	panics bool          // as the handler may
}

// Write implements [http.ResponseWriter].
func (w *streaming) Write(p []byte) (int, error) { return w.WriteString(string(p)) }

// WriteString implements io.StringWriter.
func (w *streaming) WriteString(s string) (int, error) {
	switch {
	case strings.Contains(s, "waiting"):
		time.Sleep(w.slow)
	case strings.Contains(s, "done"):
		time.Sleep(40 * time.Second)
		if w.panics {
			panic(http.ErrAbortHandler)
		}
	}
	if w.after -= len(s); w.after < 0 {
		return 0, errors.New("the client has gone")
	}
	return w.ResponseRecorder.WriteString(s)
}

// TestAStreamSaysThatItWaits, and one whose client has gone or whose handler panics leaves no slot and no place
// behind.
func TestAStreamSaysThatItWaits(t *testing.T) {
	testkit.InSynctest(t, func(t *testing.T) {
		router, limiter := gin.New(), local(t)
		streamRecipe(router, limiter)
		var all sync.WaitGroup
		stream := func(client *streaming, edit ...func(*http.Request)) *httptest.ResponseRecorder {
			client.ResponseRecorder = httptest.NewRecorder()
			all.Go(func() {
				defer func() { assert.Contains(t, []any{nil, http.ErrAbortHandler}, recover()) }()
				request := httptest.NewRequest(http.MethodGet, "/stream", nil)
				for _, f := range edit {
					f(request)
				}
				router.ServeHTTP(client, request)
			})
			synctest.Wait()
			return client.ResponseRecorder
		}
		ctx, leave := context.WithTimeout(t.Context(), 20*time.Second)
		defer leave()
		recs := []*httptest.ResponseRecorder{
			stream(&streaming{after: 1000}), stream(&streaming{after: 1000, panics: true}),
		}
		granted := stream(&streaming{after: 15, slow: 20 * time.Second}) // while a write fails that began before
		unwritable := stream(&streaming{after: 15})                      // one comment
		left := stream(&streaming{after: 1000}, func(r *http.Request) { *r = *r.WithContext(ctx) })
		for range 8 {
			recs = append(recs, stream(&streaming{after: 1000}))
		}
		all.Wait()
		require.Equal(t, ": waiting\n\n", granted.Body.String())
		require.Equal(t, ": waiting\n\n", unwritable.Body.String())
		require.Equal(t, ": waiting\n\nevent:error\ndata:unavailable\n\n", left.Body.String())
		counts := map[string]int{}
		for _, rec := range recs {
			body := rec.Body.String()
			counts[body[strings.LastIndex(body, "data:"):]]++
		}
		require.Equal(t, map[string]int{
			"data:": 1, "data:done\n\n": 3, "data:queue_full\n\n": 1, "data:in_flight\n\n": 5,
		}, counts)
		require.Contains(t, recs[2].Body.String(), ": waiting\n\n: waiting\n\n")
		require.Zero(t, limiter.Stats().Slots)
	})
}
