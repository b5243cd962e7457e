package browser

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
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

// missing skips a test that cannot run here; in CI it fails.
func missing(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		require.NoError(t, err, what)
	}
	t.Skipf("needs %s: %v", what, err)
}

func chromium(t *testing.T) string {
	t.Helper()
	var path string
	var err error
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err = exec.LookPath(name); err == nil {
			return path
		}
	}
	missing(t, "Chromium (apt-get install chromium)", err)
	return ""
}

// prefers has the browser tell the page of a wish of its user.
func prefers(feature, value string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-" + feature, Value: value}},
		})
		return err
	})
}

var screenshot = flag.String("screenshot", "", "the file to write a picture of the page to")

// TestScreenshot takes the README's picture: bursts, steady traffic above the limit, a while without Redis.
func TestScreenshot(t *testing.T) {
	if *screenshot == "" || strings.Contains(*screenshot, "admin") {
		t.Skip("-screenshot names no file")
	}
	p := open(t, example(t), chromedp.EmulateViewport(1280, 900), prefers("color-scheme", "light"))
	until := func(seconds float64) {
		p.until("it is time", fmt.Sprintf(`(window.begun ??= seconds(), seconds() - window.begun > %f)`, seconds))
	}
	until(0)
	until(1)
	p.send(10)
	until(4.5)
	p.click("[name=via][value='1']")
	p.send(10)
	until(6.5)
	p.press("#traffic", kb.ArrowRight, 4)
	until(10)
	p.click("#redis")
	p.degraded()
	until(13.5)
	p.click("#redis")
	p.recovered()
	until(15)
	p.press("#traffic", kb.Home, 1)
	until(19)
	p.send(10)
	until(20)
	p.run(`document.activeElement.blur(); $('shares').hidden = true`) // the picture is of the algorithms
	picture, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*screenshot, picture, 0o644))
}
