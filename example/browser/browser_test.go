package browser

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var screenshot = flag.String("screenshot", "", "the file to write a picture of the page to")

// patience is how long a test waits for what must happen, on a machine that is busy with others.
const patience = 2 * time.Minute

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

// prefers has the browser tell the page of a wish of its user.
func prefers(feature, value string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-" + feature, Value: value}},
		})
		return err
	})
}

// page is the live page, open in a browser.
type page struct {
	t   *testing.T
	ctx context.Context
}

// open shows the page at address after setup. The test fails if the page errs or asks another host for anything.
func open(t *testing.T, address string, setup ...chromedp.Action[chromedp.Void]) page {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewExecAllocator(ctx, append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(chromium(t)),
		chromedp.NoSandbox, // root has none
		chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WindowSize(1000, 900))...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)

	var mu sync.Mutex
	var faults []string
	asked := 0
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			fault("exception: %+v", e.ExceptionDetails)
		case *runtime.EventConsoleAPICalled:
			fault("console: %s", e.Type)
		case *log.EventEntryAdded:
			// The browser notes every refusal, which is what is tested.
			if !strings.Contains(e.Entry.Text, "429") {
				fault("log: %s %s", e.Entry.Text, e.Entry.URL)
			}
		case *network.EventRequestWillBeSent:
			asked++
			if u, err := url.Parse(e.Request.URL); err != nil || u.Scheme != "data" && u.Host != address {
				fault("another host: %s", e.Request.URL)
			}
		}
	}))
	t.Cleanup(func() { // before the browser ends, which is what was deferred above
		mu.Lock()
		defer mu.Unlock()
		assert.Empty(t, faults)
		assert.Positive(t, asked)
	})
	p := page{t, ctx}
	p.do(setup...)
	p.do(chromedp.Navigate("http://" + address))
	p.until("#level is a number", `Number($('level').textContent) === 20`)
	return p
}

func (p page) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, actions...))
}

// eval returns what a JavaScript expression is.
func eval[T any](p page, expression string) T {
	p.t.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	require.NoError(p.t, err, expression)
	return value
}

// until waits for an expression to be true. The page's policy forbids chromedp's own polling.
func (p page) until(what, expression string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		is, err := chromedp.Run(p.ctx, chromedp.Evaluate[bool](expression))
		return err == nil && is
	}, patience, 20*time.Millisecond, what)
}

func (p page) text(id string) string {
	p.t.Helper()
	return eval[string](p, `$('`+id+`').textContent`)
}

// counts waits for n requests to be answered, and returns how many were allowed and refused.
func (p page) counts(n int) (allowed, refused int) {
	p.t.Helper()
	p.until(fmt.Sprint(n, " answers"),
		fmt.Sprintf(`Number($('allowed').textContent) + Number($('refused').textContent) === %d`, n))
	return eval[int](p, `Number($('allowed').textContent)`), eval[int](p, `Number($('refused').textContent)`)
}

func (p page) click(id string) {
	p.t.Helper()
	p.do(chromedp.Click(chromedp.CSS("#" + id)))
}

func (p page) degraded() {
	p.t.Helper()
	p.until("degraded", `document.body.classList.contains('degraded') && $('status').textContent.startsWith('Degraded')`)
}

func (p page) recovered() {
	p.t.Helper()
	p.until("recovered", `!document.body.classList.contains('degraded') && $('status').textContent === 'Redis counts.'`)
}

// waterLevel is how far down in the drawing the water stands, and tokens what that is meant to show.
const (
	waterLevel = `Number($('water').getAttribute('transform').match(/ ([\d.]+)\)/)[1])`
	tokens     = `((216 - ` + waterLevel + `) / 8.1)`
)

func (p page) water() float64 {
	p.t.Helper()
	return eval[float64](p, waterLevel)
}

func TestClicksAreCounted(t *testing.T) {
	t.Parallel()
	p := open(t, example(t, ""))
	begun := time.Now()
	p.click("one")
	allowed, refused := p.counts(1)
	require.Equal(t, []int{1, 0}, []int{allowed, refused})
	require.Equal(t, "Of 1: 1 allowed, 0 refused.", p.text("said"))
	p.click("ten")
	p.counts(11)
	p.click("hundred")
	allowed, refused = p.counts(111)
	require.Equal(t, 111, allowed+refused)
	require.GreaterOrEqual(t, allowed, 20)
	if eval[int](p, `document.querySelectorAll('#timeline .away').length`) == 0 { // on a busy machine Redis can be late
		require.LessOrEqual(t, float64(allowed), 20+time.Since(begun).Seconds(), "burst + rate × t")
	}

	require.Contains(t, p.text("headers"), "X-RateLimit-Limit20")
	require.Contains(t, p.text("headers"), "X-RateLimit-Remaining")
	require.Contains(t, p.text("headers"), "X-RateLimit-Reset")
	if strings.Contains(p.text("headers"), "429") {
		require.Contains(t, p.text("headers"), "Retry-After1")
	}
	p.until("drawn", fmt.Sprintf(`document.querySelector('#timeline .allowed') !== null
		&& (document.querySelector('#timeline .refused') !== null) === %t`, refused > 0))
}

func TestBucketDrainsAndRefills(t *testing.T) {
	t.Parallel()
	p := open(t, example(t, ""))
	require.Equal(t, "20", eval[string](p, `$('bucket').getAttribute('aria-valuenow')`))
	p.until("full", waterLevel+` < 54.1`)
	for sent := 100; p.water() < 180; sent += 100 {
		p.click("hundred")
		p.counts(sent)
	}
	p.until("between two tokens", fmt.Sprintf(`Math.abs(%s %% 1 - .5) < .3`, tokens))
	p.until("refilled", `$('bucket').classList.contains('full') && $('level').textContent === '20'`)
	p.until("full again", waterLevel+` < 54.1`)
}

func TestRedisIsStoppedAndStarted(t *testing.T) {
	t.Parallel()
	p := open(t, example(t, ""))
	p.recovered()
	p.until("the switch is shown", `!$('redis').hidden`)
	sent := 0
	for range 2 {
		p.click("switch")
		p.degraded()
		require.Equal(t, "false", eval[string](p, `$('switch').getAttribute('aria-checked')`))
		allowed, _ := p.counts(sent)
		p.click("ten")
		sent += 10
		more, _ := p.counts(sent)
		require.Greater(t, more, allowed, "requests pass without Redis")
		require.Contains(t, p.text("headers"), "X-RateLimit-Statusdegraded")
		p.until("drawn", `document.querySelector('#timeline .away') !== null`)

		p.click("switch")
		p.recovered()
		require.Equal(t, "true", eval[string](p, `$('switch').getAttribute('aria-checked')`))
		for {
			p.click("one")
			sent++
			p.counts(sent)
			if !strings.Contains(p.text("headers"), "X-RateLimit-Status") {
				break // a busy Redis may be late once more
			}
		}
	}
}

// tabTo presses Tab until the element has the focus, and checks that one sees it.
func (p page) tabTo(id string) {
	p.t.Helper()
	for range 10 {
		p.do(chromedp.KeyEvent(kb.Tab))
		if eval[string](p, `document.activeElement.id`) == id {
			require.True(p.t, eval[bool](p, `document.activeElement.matches(':focus-visible')
				&& getComputedStyle(document.activeElement).outlineStyle === 'solid'
				&& parseFloat(getComputedStyle(document.activeElement).outlineWidth) >= 2`), id)
			return
		}
	}
	require.Fail(p.t, "Tab does not come to "+id)
}

func TestKeyboard(t *testing.T) {
	t.Parallel()
	p := open(t, example(t, ""))
	p.until("the switch is shown", `!$('redis').hidden`)
	p.tabTo("one")
	p.do(chromedp.KeyEvent(kb.Enter))
	p.counts(1)
	p.tabTo("ten")
	p.do(chromedp.KeyEvent(" "))
	p.counts(11)
	p.tabTo("hundred")
	p.do(chromedp.KeyEvent(kb.Enter))
	allowed, refused := p.counts(111)
	require.Equal(t, 111, allowed+refused)
	p.tabTo("switch")
	p.do(chromedp.KeyEvent(" "))
	p.degraded()
	p.do(chromedp.KeyEvent(kb.Enter))
	p.recovered()
}

func TestPhone(t *testing.T) {
	t.Parallel()
	for _, width := range []int64{320, 390} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			t.Parallel()
			p := open(t, example(t, ""), chromedp.EmulateViewport(width, 640, chromedp.EmulateMobile, chromedp.EmulateTouch))
			fits := func() {
				t.Helper()
				require.Equal(t, width, eval[int64](p, `document.documentElement.clientWidth`))
				require.Equal(t, width, eval[int64](p, `document.documentElement.scrollWidth`), "it scrolls sideways")
				require.Empty(t, eval[[]string](p, `[...document.querySelectorAll('main *')]
					.filter(e => !e.closest('svg') && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
					.map(e => e.tagName + '#' + e.id)`), "cut off")
			}
			fits()
			require.GreaterOrEqual(t, eval[float64](p,
				`Math.min(...[...document.querySelectorAll('button')].filter(b => b.offsetParent).map(b => b.offsetHeight))`), 44.0, "for a finger")
			require.True(t, eval[bool](p, `$('hundred').getBoundingClientRect().bottom <= innerHeight`),
				"bucket and buttons are seen at once")
			p.click("hundred")
			p.counts(100)
			fits()
			p.click("switch")
			p.degraded()
			fits()
		})
	}
}

// contrasts are those of every text with its background, as WCAG 2.2 (1.4.3) reckons them.
const contrasts = `(() => {
	const rgb = s => s.match(/[\d.]+/g).map(Number)
	const light = s => {
		const [r, g, b] = rgb(s).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
		return .2126 * r + .7152 * g + .0722 * b
	}
	const behind = e => {
		for (; e; e = e.parentElement) {
			const s = getComputedStyle(e).backgroundColor
			if (rgb(s)[3] !== 0) return s
		}
		return 'rgb(255, 255, 255)'
	}
	const faint = []
	for (const e of document.querySelectorAll('body *')) {
		if (e.closest('svg, script, noscript, [hidden]')) continue
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue
		const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x)
		if ((a + .05) / (b + .05) < 4.5) faint.push(e.textContent)
	}
	for (const water of document.querySelectorAll('#water path, .air')) {
		const [a, b] = [light(getComputedStyle($('level')).fill), light(getComputedStyle(water).fill)].sort((x, y) => y - x)
		if ((a + .05) / (b + .05) < 4.5) faint.push('level')
	}
	return faint
})()`

func TestLightAndDark(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			p := open(t, example(t, ""), prefers("color-scheme", scheme))
			require.Equal(t, scheme == "dark",
				eval[bool](p, `getComputedStyle(document.body).backgroundColor.match(/\d+/g).every(v => v < 64)`))
			p.click("hundred")
			p.counts(100)
			require.Empty(t, eval[[]string](p, contrasts), "hard to read")
			p.click("switch")
			p.degraded()
			require.Empty(t, eval[[]string](p, contrasts), "hard to read")
		})
	}
}

func TestReducedMotion(t *testing.T) {
	t.Parallel()
	p := open(t, example(t, ""), prefers("reduced-motion", "reduce"))
	for sent := 10; p.water() < 70; sent += 10 {
		p.click("ten")
		p.counts(sent)
	}
	require.Zero(t, eval[int](p, `document.getAnimations().length`))
	shown := eval[float64](p, tokens)
	require.InDelta(t, math.Round(shown), shown, 0.01, "the water steps by whole tokens")
}

func TestServerHasNoSwitch(t *testing.T) {
	t.Parallel()
	p := open(t, example(t, "redis://127.0.0.1:1")) // where none is: the page tells of that as well
	p.degraded()
	p.click("ten")
	p.counts(10)
	require.False(t, eval[bool](p, `$('switch').checkVisibility()`))
}

// TestScreenshot draws the README's picture: a bucket that was drained, without Redis for some seconds, and is used again.
func TestScreenshot(t *testing.T) {
	if *screenshot == "" {
		t.Skip("-screenshot names no file")
	}
	p := open(t, example(t, ""), chromedp.EmulateViewport(1000, 800),
		prefers("color-scheme", "light"))
	sent := 0
	send := func(id string, n int) {
		p.click(id)
		sent += n
		p.counts(sent)
	}
	full := func(level int) { p.until("refilled", fmt.Sprintf(`Number($('level').textContent) >= %d`, level)) }
	for level := 13; level > 4; level -= 3 {
		send("ten", 10)
		full(level)
	}
	send("hundred", 100)
	full(3)
	p.click("switch")
	p.degraded()
	for level := 12; level > 3; level -= 4 {
		send("ten", 10)
		full(level)
	}
	p.click("switch")
	p.recovered()
	send("one", 1)
	full(14)
	send("hundred", 100)
	full(8)
	p.do(chromedp.Blur(chromedp.CSS("#hundred")))
	picture, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*screenshot, picture, 0o644))
}
