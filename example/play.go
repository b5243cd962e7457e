package main

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ginlimit/ginlimit"
)

// maxRequests is how many requests the page sends at once, at most.
const maxRequests = 100

// playground is what the page plays with: two processes that count in one Redis.
type playground struct {
	processes [replicas]*process
	redis     *ownRedis // nil if Redis is a server
}

// playView is an answer to the page.
type playView struct {
	Redis     redisView             `json:"redis"`
	Port      string                `json:"port"` // of the second process
	Lanes     [len(algorithms)]lane `json:"lanes"`
	Processes [replicas]seen        `json:"processes"`
}

// lane is one algorithm.
type lane struct {
	Name   string `json:"name"`
	Limit  string `json:"limit"`
	Code   string `json:"code"`
	Answer *tally `json:"answer,omitempty"` // to the requests that the page has just sent
}

// seen is what a process knows of each algorithm's tokens.
type seen [len(algorithms)]tokens

// tokens are one client's. Times are in milliseconds.
type tokens struct {
	Limit     int     `json:"limit"`     // this process gives so many at once
	PerSecond float64 `json:"perSecond"` // come back, on average
	Period    int64   `json:"period"`
	Remaining int     `json:"remaining"`
	Retry     float64 `json:"retry"` // until a request passes
	Reset     float64 `json:"reset"` // until all have come back
	Local     bool    `json:"local"` // the process decides alone
}

// tally sums up the answers to the same request, sent several times, and has the last one.
type tally struct {
	Admitted int         `json:"admitted"`
	Denied   int         `json:"denied"`
	Local    bool        `json:"local"` // one of them at least was decided without Redis
	Status   int         `json:"status"`
	Header   http.Header `json:"header"`
}

// look tells what each process sees. It takes no token.
func (p *playground) look(c *gin.Context) {
	if limit, ok := p.limit(c); ok {
		p.tell(c, limit, nil)
	}
}

// send sends n requests through a process to each algorithm. All of them go through the middleware.
func (p *playground) send(c *gin.Context) {
	limit, ok := p.limit(c)
	if !ok {
		return
	}
	n, ok := number(c, c.Query("n"), 1)
	if !ok {
		return
	}
	handler, ok := p.via(c)
	if !ok {
		return
	}

	answers := new([len(algorithms)]tally)
	for range n {
		for i, a := range algorithms {
			query := c.Request.URL.Query()
			query.Set("algorithm", a.name)
			answers[i].add(handler, requestOf(c, "/try", query))
		}
		if c.Request.Context().Err() != nil {
			return // the page is gone
		}
	}
	p.tell(c, limit, answers)
}

// number reads how many requests to send, low or more, or answers that there is no such number.
func number(c *gin.Context, text string, low int) (int, bool) {
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > maxRequests {
		c.String(http.StatusBadRequest, "n: want a whole number from %d to %d\n", low, maxRequests)
		return 0, false
	}
	return n, true
}

// via returns the process of the query, or answers that there is none.
func (p *playground) via(c *gin.Context) (http.Handler, bool) {
	via, err := strconv.Atoi(c.Query("via"))
	if err != nil || via < 0 || via >= len(p.processes) {
		c.String(http.StatusBadRequest, "via: want 0 or 1\n")
		return nil, false
	}
	return p.processes[via].handler, true
}

// requestOf returns a request of the page's visitor.
func requestOf(c *gin.Context, path string, query url.Values) *http.Request {
	request := c.Request.Clone(c.Request.Context())
	request.Method, request.Body, request.ContentLength = http.MethodGet, http.NoBody, 0
	request.URL.Path, request.URL.RawQuery = path, query.Encode()
	return request
}

// reset fills the client's buckets.
func (p *playground) reset(c *gin.Context) {
	limit, ok := p.limit(c)
	if !ok {
		return
	}
	ctx := context.WithValue(c.Request.Context(), chosenLimit{}, limit)
	client, err := ginlimit.ByClientIP(c)
	for _, process := range p.processes {
		for _, policy := range process.tries {
			if err == nil {
				err = policy.Reset(ctx, client)
			}
		}
	}
	if err != nil {
		c.String(http.StatusServiceUnavailable, "the buckets cannot be reset without Redis\n")
		return
	}
	p.tell(c, limit, nil)
}

// limit returns the limit of the query, or answers that there is none.
func (p *playground) limit(c *gin.Context) (ginlimit.Limit, bool) {
	c.Header("Cache-Control", "no-store")
	limit, ok := parseLimit(c.Query("limit"))
	if !ok {
		c.String(http.StatusBadRequest, errLimit)
	}
	return limit, ok
}

// tell answers the page. answers are nil if it sent no requests.
func (p *playground) tell(c *gin.Context, limit ginlimit.Limit, answers *[len(algorithms)]tally) {
	view := playView{Redis: p.redis.view(), Port: p.processes[1].port}
	for i, a := range algorithms {
		limit := forAlgorithm(limit, a.algorithm)
		view.Lanes[i] = lane{Name: a.name, Limit: limit.String(), Code: code(limit, a.code)}
		if answers != nil {
			view.Lanes[i].Answer = &answers[i]
		}
	}
	ctx := context.WithValue(c.Request.Context(), chosenLimit{}, limit)
	client, err := ginlimit.ByClientIP(c)
	for n, process := range p.processes {
		for i, policy := range process.tries {
			var result ginlimit.Result
			if err == nil {
				result, err = policy.Peek(ctx, client)
			}
			view.Processes[n][i] = tokensOf(result)
		}
	}
	if err != nil {
		c.String(http.StatusServiceUnavailable, "no decision could be made\n")
		return
	}
	c.JSON(http.StatusOK, view)
}

// tokensOf returns what a result says. Without Redis, a process has its share of rate and burst.
func tokensOf(result ginlimit.Result) tokens {
	rate, burst := result.Limit.Rate, cmp.Or(result.Limit.Burst, result.Limit.Rate)
	local := result.Source == ginlimit.FromLocal
	if local {
		rate, burst = max(1, rate/replicas), max(1, burst/replicas)
	}
	return tokens{
		Limit: burst, PerSecond: float64(rate) / result.Limit.Period.Seconds(), Period: result.Limit.Period.Milliseconds(),
		Remaining: result.Remaining, Retry: milliseconds(result.RetryAfter),
		Reset: milliseconds(result.ResetAfter), Local: local,
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// add has a handler answer one more request.
func (t *tally) add(handler http.Handler, request *http.Request) {
	w := &answerWriter{header: http.Header{}, status: http.StatusOK}
	handler.ServeHTTP(w, request)
	if w.status == http.StatusOK {
		t.Admitted++
	} else {
		t.Denied++
	}
	t.Status, t.Header = w.status, w.header
	t.Local = t.Local || w.header.Get("X-RateLimit-Status") != ""
}

// answerWriter keeps status and header of an answer, and drops its body.
type answerWriter struct {
	header http.Header
	status int
}

func (w *answerWriter) Header() http.Header         { return w.header }
func (w *answerWriter) WriteHeader(status int)      { w.status = status }
func (w *answerWriter) Write(b []byte) (int, error) { return len(b), nil }
