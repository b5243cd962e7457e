package top

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// childEnv has the address of Redis in the process that [TestKilledProcess] kills.
const childEnv = "GINLIMIT_TOP_CHILD"

// child is that process: it counts, waits until its counts are in Redis, says so, counts on and waits.
func child() bool {
	addr := os.Getenv(childEnv)
	if addr == "" {
		return false
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	r, err := New(rdb, WithInterval(time.Second))
	if err != nil {
		panic(err)
	}
	for range 1000 {
		deny(r, "p", "a")
	}
	reported := func() bool {
		all, err := Denied(context.Background(), rdb, ginlimit.DefaultPrefix, "p")
		return err == nil && len(all) == 1 && all[0].Denials == 1000
	}
	testkit.BecomesTrue(nil, reported)
	for range 500 {
		deny(r, "p", "a")
	}
	fmt.Println("counted")
	select {}
}

// TestKilledProcess: what it had reported stays, so it loses no more than it counted since.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	addr := testkit.StartRedis(t)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+addr)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.NoError(t, err)
	require.Equal(t, "counted\n", line)
	all := denied(t, testkit.Connect(t, addr), "p")
	require.Len(t, all, 1)
	require.GreaterOrEqual(t, all[0].Denials, int64(1000))
	require.LessOrEqual(t, all[0].Denials, int64(1500))
}
