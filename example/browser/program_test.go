package browser

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// build makes the program as `go run ./example` does, once.
var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "example")
	command := exec.Command("go", "build", "-o", path, "./example")
	command.Dir = "../.."
	if out, err := command.CombinedOutput(); err != nil {
		return path, fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

var programs string // the folder of what was built

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "ginlimit"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}

// example runs the program until the test ends, and returns its address.
func example(t *testing.T, redisURL string) string {
	t.Helper()
	chromium(t) // without it there is nothing to build for
	path, err := build()
	require.NoError(t, err)
	program := exec.Command(path, "-addr", "127.0.0.1:0")
	program.Env = append(os.Environ(), "REDIS_URL="+redisURL)
	out, err := program.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	t.Cleanup(func() {
		assert.NoError(t, program.Process.Signal(syscall.SIGINT))
		assert.NoError(t, program.Wait())
	})
	said := bufio.NewReader(out)
	line, err := said.ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, said) }()
	address := regexp.MustCompile(`^Listening on (127\.0\.0\.1:\d+),`).FindStringSubmatch(line)
	require.NotNil(t, address, line)
	return address[1]
}
