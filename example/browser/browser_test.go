package browser

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

var screenshot = flag.String("screenshot", "", "the file to write a picture of the page to")

// patience is how long a test waits for what must happen, on a machine that is busy with others.
const patience = 2 * time.Minute

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
