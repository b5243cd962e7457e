package integration

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestApacheBenchGetsExactlyTheLimit runs the command of bench/README.md: of 1,200 requests to a
// limit of 1,000, exactly 1,000 pass.
func TestApacheBenchGetsExactlyTheLimit(t *testing.T) { // not parallel: a token comes back every 3.6 s
	testkit.Need(t, "ab")
	var mu sync.Mutex
	statuses := map[int]int{}
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Next()
		mu.Lock()
		defer mu.Unlock()
		statuses[c.Writer.Status()]++
	}, testkit.NewLimiter(t, testkit.Connect(t, testkit.StartRedis(t))).Handler("1000/h", ginlimit.PerHour(1000)))
	r.GET("/", func(*gin.Context) {})
	server := httptest.NewServer(r)
	defer server.Close()

	text := testkit.Must(os.ReadFile("../../bench/README.md"))
	readme := regexp.MustCompile(
		"(?s)```sh\n(ab [^\n]*) http://127.0.0.1:8080/ping\n```\n\n```text\n(.*?)```").FindStringSubmatch(string(text))
	require.NotNil(t, readme)
	command := append(strings.Fields(readme[1]), server.URL+"/")
	report, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
	require.NoError(t, err, string(report))
	require.Equal(t, map[int]int{http.StatusOK: 1000, http.StatusTooManyRequests: 200}, statuses)
	for line := range strings.Lines(readme[2]) {
		if !strings.HasPrefix(line, "Time taken") {
			require.Contains(t, string(report), line, "as bench/README.md shows")
		}
	}
	require.Contains(t, readme[2], "Non-2xx responses:      200\n")
}
