package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

const testView = "0123456789abcdef"

// sharesQuery is a call of the page, with the requests and the weight of each tenant.
func sharesQuery(via string, n [3]int, weights [3]string) string {
	query := url.Values{"view": {testView}, "via": {via}, "weight": weights[:]}
	for _, n := range n {
		query.Add("n", fmt.Sprint(n))
	}
	return query.Encode()
}

// TestSharesFollowWeights of tenants that all ask for more, through both processes, once the burst is used.
func TestSharesFollowWeights(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := playgroundOn(t, nil, func() *redis.Client { return b.Connect(t) })
		var got [3]int // in 5 seconds
		for step := range 90 {
			query := sharesQuery(fmt.Sprint(step%replicas), [3]int{10, 10, 10}, [3]string{"1", "2", "5"})
			response := ask(p.processes[0].handler, "POST", "/play/shares?"+query)
			require.Equal(t, http.StatusOK, response.Code, response.Body)
			require.Equal(t, "no-store", response.Header().Get("Cache-Control"))
			var view sharesView
			require.NoError(t, json.Unmarshal(response.Body.Bytes(), &view))
			for i, answer := range view.Answers {
				require.Equal(t, 10, answer.Admitted+answer.Denied, "each request is answered")
				if step >= 40 {
					got[i] += answer.Admitted
				}
			}
			time.Sleep(time.Second / 10)
		}
		for i, want := range []float64{31, 62, 157} {
			require.InDelta(t, want, got[i], want/20, tenants[i])
		}
	})
}

// TestViewsAreApart has two visitors, and one that goes.
func TestViewsAreApart(t *testing.T) {
	testkit.InBubble(t, func(t *testing.T, b *testkit.Bubble) {
		p := playgroundOn(t, nil, func() *redis.Client { return b.Connect(t) })
		r := p.processes[0].handler
		ask(r, "POST", "/play/shares?"+sharesQuery("0", [3]int{100, 0, 0}, [3]string{"1", "1", "1"}))
		require.NotEmpty(t, b.Mini.Keys())
		one := "/share?tenant=acme&weight=1&view="
		require.Equal(t, http.StatusTooManyRequests, ask(r, "GET", one+testView).Code)
		require.Equal(t, http.StatusOK, ask(r, "GET", one+"fedcba9876543210").Code)
		require.Equal(t, http.StatusOK, ask(r, "GET", "/share?tenant=beta&weight=1&view="+testView).Code)
		time.Sleep(time.Minute)
		for _, key := range b.Mini.Keys() { // but which policies serve
			require.Contains(t, key, "{policies}", "nothing is left of a view")
		}
	})
}

func TestHostileShares(t *testing.T) {
	r, p := application(t, "")
	rejected := func(method, address, text string) {
		t.Helper()
		response := ask(r, method, address)
		require.Equal(t, http.StatusBadRequest, response.Code, address)
		require.Equal(t, text, response.Body.String(), "it repeats nothing of the request")
		require.Contains(t, response.Header().Get("Content-Type"), "text/plain")
	}
	// with replaces fields of a query that is right.
	with := func(query string, fields ...string) string {
		values := testkit.Must(url.ParseQuery(query))
		for i := 0; i < len(fields); i += 2 {
			values[fields[i]] = strings.Split(fields[i+1], " ")
		}
		return values.Encode()
	}
	single := "view=" + testView + "&tenant=acme&weight=1"
	call := sharesQuery("0", [3]int{1, 1, 1}, [3]string{"1", "1", "1"})
	const wrongView, wrongWeight = "view: want 16 hexadecimal digits\n", "weight: want one of 1, 2, 5\n"
	for _, view := range []string{"", "0", testView + "0", "0123456789ABCDEF", testView + "\n"} {
		rejected("GET", "/share?"+with(single, "view", view), wrongView)
		rejected("POST", "/play/shares?"+with(call, "view", view), wrongView)
	}
	for _, tenant := range []string{"", "delta", "ACME"} {
		rejected("GET", "/share?"+with(single, "tenant", tenant), "tenant: want one of acme, beta, core\n")
	}
	for _, weight := range []string{"0", "-1", "3", "1.0", "9223372036854775808"} {
		rejected("GET", "/share?"+with(single, "weight", weight), wrongWeight)
		rejected("POST", "/play/shares?"+with(call, "weight", "1 2 "+weight), wrongWeight)
	}
	for _, n := range []string{"-1", "101", "x", "9223372036854775808"} {
		rejected("POST", "/play/shares?"+with(call, "n", "1 1 "+n), "n: want a whole number from 0 to 100\n")
	}
	for _, fields := range [][]string{{"n", ""}, {"n", "1 1 1 1"}, {"weight", "1"}} {
		rejected("POST", "/play/shares?"+with(call, fields...), "n and weight: want one for each of acme, beta, core\n")
	}
	rejected("POST", "/play/shares?"+with(call, "via", "2"), "via: want 0 or 1\n")
	require.Empty(t, p.redis.Keys(), "nothing was counted")
	require.Equal(t, http.StatusOK, ask(r, "GET", "/share?"+single).Code)
	require.Equal(t, http.StatusOK, ask(r, "POST", "/play/shares?"+call).Code)
}

// TestCallsTakeTurns has more visitors than calls are answered at once, and one that leaves while it waits.
func TestCallsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, begun, finish := gin.New(), 0, make(chan struct{})
		r.GET("/", turns(2), func(*gin.Context) { begun++; <-finish })
		ctx, leave := context.WithCancel(t.Context())
		call := func(ctx context.Context) {
			go r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			synctest.Wait()
		}
		call(t.Context())
		call(t.Context())
		call(ctx)
		call(t.Context())
		require.Equal(t, 2, begun)
		leave()
		synctest.Wait()
		require.Equal(t, 2, begun)
		finish <- struct{}{}
		synctest.Wait()
		require.Equal(t, 3, begun)
		close(finish)
	})
}

// TestPageKnowsTheSharedLimit compares what the page has of the application.
func TestPageKnowsTheSharedLimit(t *testing.T) {
	html := testkit.Must(os.ReadFile("page.html"))
	require.Contains(t, string(html), "<code>"+sharedLimit.String()+"</code>")
	for _, weight := range weights {
		require.Contains(t, string(html), `<input type="radio" value="`+weight+`"`)
	}
	js := testkit.Must(os.ReadFile("shares.js"))
	require.Contains(t, string(js), fmt.Sprintf("const sharedRate = %d ", sharedLimit.Rate))
	require.Contains(t, string(js), "['"+strings.Join(tenants[:], "', '")+"']")
}
