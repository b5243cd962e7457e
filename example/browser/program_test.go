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
func example(t *testing.T) (address string) {
	t.Helper()
	chromium(t) // without it there is nothing to build for
	path, err := build()
	require.NoError(t, err)
	command := exec.Command(path, "-addr", "127.0.0.1:0")
	command.Env = append(os.Environ(), "REDIS_URL=")
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		assert.NoError(t, command.Process.Signal(syscall.SIGINT))
		assert.NoError(t, command.Wait())
	})
	said := bufio.NewReader(out)
	line, err := said.ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, said) }()
	listens := regexp.MustCompile(`^Listening on (127\.0\.0\.1:\d+),`).FindStringSubmatch(line)
	require.NotNil(t, listens, line)
	return listens[1]
}
