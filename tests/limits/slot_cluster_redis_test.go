//go:build integration

package limits_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// infoOf returns the sum of a number in INFO over servers.
func infoOf(t *testing.T, servers []*redis.Client, section, pattern string) (sum float64) {
	t.Helper()
	for _, rdb := range servers {
		if found := regexp.MustCompile(pattern).FindStringSubmatch(rdb.Info(t.Context(), section).Val()); found != nil {
			sum += testkit.Must(strconv.ParseFloat(found[1], 64))
		}
	}
	return sum
}

// TestRenewalsOnAClusterShareCommands, though their keys are in different hash slots; and each key is renewed.
func TestRenewalsOnAClusterShareCommands(t *testing.T) {
	t.Parallel()
	addrs := testkit.StartCluster(t, 3)
	var servers []*redis.Client
	for _, addr := range addrs {
		servers = append(servers, testkit.Connect(t, addr))
	}
	rdb := testkit.ConnectCluster(t, addrs...)
	limiter := testkit.NewLimiter(t, rdb)
	p := testkit.Must(limiter.Policy("api", ginlimit.InFlight(1)))
	const keys = 3000
	for i := range keys {
		slot := testkit.Keep(t, testkit.Must(p.Reserve(t.Context(), fmt.Sprint("client ", i), 1)))
		require.True(t, slot.OK())
	}
	count := func() (calls, reads, cpu float64) {
		return infoOf(t, servers, "commandstats", `cmdstat_evalsha:calls=(\d+)`),
			infoOf(t, servers, "stats", `total_reads_processed:(\d+)`), infoOf(t, servers, "cpu", `used_cpu_user:([\d.]+)`)
	}
	calls, reads, cpu := count()
	start := time.Now()
	<-time.After(12 * time.Second) // longer than Redis goes by a report
	calls2, reads2, cpu2 := count()
	seconds := time.Since(start).Seconds()
	calls = (calls2 - calls) / seconds
	t.Logf("%.0f calls a second, in %.0f reads, %.1f %% of a CPU", calls, (reads2-reads)/seconds, 100*(cpu2-cpu)/seconds)
	require.Less(t, calls, keys/10.)
	for i := range keys {
		res, err := p.Peek(t.Context(), fmt.Sprint("client ", i))
		require.NoError(t, err)
		require.False(t, res.Allowed, "client %d", i)
	}
}
