package admin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin"
)

func Example() {
	gin.SetMode(gin.ReleaseMode)
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	defer rdb.Close()
	limiter, err := ginlimit.NewLimiter(rdb)
	if err != nil {
		panic(err)
	}
	defer limiter.Close()

	page, err := admin.New(limiter, rdb, admin.WithChanges(func(r *http.Request) (string, bool) {
		name, _, ok := r.BasicAuth() // which gin.BasicAuth has checked
		return name, ok
	}))
	if err != nil {
		panic(err)
	}
	router := gin.New()
	staff := router.Group("/staff", gin.BasicAuth(gin.Accounts{"ann": "secret"}))
	staff.Any("/*page", gin.WrapH(page))

	answer := httptest.NewRecorder()
	router.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/staff/", nil))
	fmt.Println(answer.Code)
	// Output: 401
}
