package ginlimit_test

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// TestApacheBenchGetsExactlyTheLimit is the headline of system A: of 1,200 requests to a limit of
// 1,000, exactly 1,000 pass.
func TestApacheBenchGetsExactlyTheLimit(t *testing.T) { // not parallel: a token comes back every 3.6 s
	ab := need(t, "ab")
	var mu sync.Mutex
	statuses := map[int]int{}
	r := serve(func(c *gin.Context) {
		c.Next()
		mu.Lock()
		defer mu.Unlock()
		statuses[c.Writer.Status()]++
	}, middleware(connect(t, startRedis(t)), ginlimit.PerHour(1000)))
	server := httptest.NewServer(r)
	defer server.Close()

	report, err := exec.CommandContext(t.Context(), ab, "-l", "-n", "1200", "-c", "50", server.URL+"/").CombinedOutput()
	require.NoError(t, err, string(report))
	require.Equal(t, map[int]int{http.StatusOK: 1000, http.StatusTooManyRequests: 200}, statuses)
	require.Regexp(t, regexp.MustCompile(`Complete requests: +1200\n`), string(report))
	require.Regexp(t, regexp.MustCompile(`Non-2xx responses: +200\n`), string(report))
}
