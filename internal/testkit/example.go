package testkit

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// ExampleRedis returns a client of a Redis in this process. Production has a real one.
func ExampleRedis() (*redis.Client, func()) {
	mini, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	return rdb, func() { _ = rdb.Close(); mini.Close() }
}

// PrintRequest prints what a client at an address gets.
func PrintRequest(router http.Handler, method, path, address string, header ...string) {
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

// PrintAnswer prints the status and some header fields of what a client gets.
func PrintAnswer(router http.Handler, header http.Header, fields ...string) {
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	req.Header = header
	rec := httptest.NewRecorder()
	router.ServeHTTP(rec, req)
	fmt.Println(rec.Code)
	for _, field := range fields {
		fmt.Printf("  %s: %s\n", field, cmp.Or(rec.Header().Get(field), "(none)"))
	}
}
