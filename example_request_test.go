package ginlimit_test

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

// What the Examples share: a Redis, and requests whose answers are printed.

// exampleRedis returns a client of a Redis in this process. Production has a real one.
func exampleRedis() (*redis.Client, func()) {
	mini, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	ginlimit.SetDefaultTimeout(time.Minute)
	return rdb, func() { ginlimit.SetDefaultTimeout(ginlimit.DefaultTimeout); _ = rdb.Close(); mini.Close() }
}

// request prints what a client at an address gets.
func request(router http.Handler, method, path, address string, header ...string) {
	req := httptest.NewRequest(method, path, nil)
	req.RemoteAddr = address + ":1234"
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	router.ServeHTTP(rec, req)
	fmt.Print(method, " ", path, " ", rec.Code)
	if remaining := rec.Header().Get("X-RateLimit-Remaining"); remaining != "" {
		fmt.Print(" remaining ", remaining)
	}
	fmt.Println()
}

func ok(c *gin.Context) { c.Status(http.StatusOK) }

// answer prints the status and some header fields of what a client gets.
func answer(router http.Handler, header http.Header, fields ...string) {
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	req.Header = header
	rec := httptest.NewRecorder()
	router.ServeHTTP(rec, req)
	fmt.Println(rec.Code)
	for _, field := range fields {
		fmt.Printf("  %s: %s\n", field, cmp.Or(rec.Header().Get(field), "(none)"))
	}
}
