package browser

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

func TestBurst(t *testing.T) {
	t.Parallel()
	p := open(t, example(t))
	p.limit5PerMinute()
	p.burst10()
	for _, lane := range lanes {
		require.Equal(t, counts{5, 5}, p.counts(lane), lane)
		require.Equal(t, 0, p.left(lane), lane)
		require.Equal(t, "left of 5", p.text("#"+lane+" .left span"))
		require.Regexp(t, `^try again in \d+(\.\d)? s$`, p.text("#"+lane+" .wait"))
		require.Equal(t, "0", eval[string](p, `document.querySelector('#`+lane+` .left').getAttribute('aria-valuenow')`))
	}
	require.Equal(t, "Of 10: bucket admitted 5, fixed window 5, sliding window 5.", p.text("#said"))

	p.until("the countdown runs between two answers", `(() => {
		const { at } = lanes[0].seen, wait = lanes[0].seen.wait(seconds())
		window.first ??= {}
		window.first[at] ??= wait
		return wait < window.first[at] - .05
	})()`)
	t.Run("the last answer", func(t *testing.T) {
		require.Equal(t, "429 Too Many Requests", p.field("Status", 1))
		require.Equal(t, "429", p.field("Status", 2))
		require.Equal(t, "5", p.field("X-RateLimit-Limit", 1))
		require.Equal(t, "0", p.field("X-RateLimit-Remaining", 1))
		require.Equal(t, "0", p.field("X-RateLimit-Remaining", 2))
		require.Regexp(t, `^1[0-2]$`, p.field("Retry-After", 1))
		require.Regexp(t, `^\d+(\.\d)? s$`, p.field("Retry-After", 2))
		p.until("it grows old", `/^[1-9]\d* s ago, via A$/.test($('age').textContent)`)
		p.click("[name=closer][value=fixed-window]")
		require.Regexp(t, `^(5\d|60)$`, p.field("Retry-After", 1))
	})
	t.Run("the timeline", func(t *testing.T) {
		for _, lane := range lanes {
			p.until("bars and curve", fmt.Sprintf(`['admitted', 'denied', 'level', 'area'].every(kind =>
				document.querySelector('[data-row=%s] .' + kind)?.getAttribute('d').length > 10)`, lane))
		}
		require.Equal(t, "120 s", p.text("#span"))
		// the legend has the marks of the drawing
		for _, kind := range []string{"level", "area", "admitted", "denied", "away"} {
			require.True(t, eval[bool](p, fmt.Sprintf(`(() => {
				const style = e => (s => [s.fill, s.stroke, s.opacity].join())(getComputedStyle(e))
				return style(document.querySelector('.legend .%s')) === style(document.querySelector('#timeline .%[1]s'))
			})()`, kind)), kind)
		}
	})
	t.Run("start over", func(t *testing.T) {
		p.click("#reset")
		p.until("said", `$('said').textContent === 'All buckets are full.'`)
		for _, lane := range lanes {
			require.Equal(t, counts{}, p.counts(lane))
			p.until("full", `document.querySelector('#`+lane+` .left b').textContent === '5'`)
		}
		require.Contains(t, p.text("#answer tbody"), "No request was sent yet.")
	})
}

func TestProcessesAndRedis(t *testing.T) {
	t.Parallel()
	p := open(t, example(t))
	p.limit5PerMinute()
	for decided := false; !decided; p.recovered() { // on a busy machine Redis may be late at any of these steps
		p.click("#reset")
		p.until("full", `document.querySelectorAll('.lane.full').length === 3`)
		p.click("[name=via][value='0']")
		p.send(1)
		p.click("[name=via][value='1']")
		p.send(1)
		response, err := http.Get("http://" + p.text("#address-1") + "/try?limit=5/m") // of the bucket
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
		decided = !p.local() && response.Header.Get("X-RateLimit-Status") == ""
	}
	for _, lane := range lanes {
		require.Equal(t, counts{2, 0}, p.counts(lane))
		left := "3"
		if lane == "token-bucket" {
			left = "[2-4]" // on a busy machine some have come back
		}
		p.until("A and B see the same", fmt.Sprintf(
			`/^A sees (%s)B sees \1/.test(document.querySelector('#%s .shared').textContent)`,
			left, lane))
	}
	require.Equal(t, p.text("#address-1"), regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(p.text("#curl")))
	require.Contains(t, p.text("#age"), "via B")

	for range 2 {
		p.click("#redis")
		p.degraded()
		require.Equal(t, "false", eval[string](p, `$('redis').getAttribute('aria-checked')`))
		require.Equal(t, "off", p.text("#redis-value"))
		p.send(10)
		for _, lane := range lanes {
			require.Equal(t, []string{"A has 2", "B has 0"}, p.shared(lane), "each its half")
			p.until("drawn", `document.querySelector('[data-row=`+lane+`] .away').getAttribute('d') !== ''`)
		}
		require.Equal(t, "degraded", p.field("X-RateLimit-Status", 1))

		p.click("#redis")
		p.recovered()
		p.drawn()
		require.Equal(t, "true", eval[string](p, `$('redis').getAttribute('aria-checked')`))
		require.Equal(t, "on", p.text("#redis-value"))
		// more than 2 if the machine is so busy that tokens have come back
		p.until("Redis remembers",
			`/^A sees ([2-5])B sees \1/.test(document.querySelector('#token-bucket .shared').textContent)`)
	}
}

// TestEverySize has axe look at the page, in both themes, on a phone and on a desk, as it changes.
func TestEverySize(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			axe := axe(t)
			p := open(t, example(t), prefers("color-scheme", scheme))
			dark := func() bool {
				return eval[bool](p, `getComputedStyle(document.body).backgroundColor.match(/\d+/g).every(v => v < 64)`)
			}
			require.Equal(t, scheme == "dark", dark())
			p.run(axe)
			p.accessible("new", 1280, 360)
			p.send(50)
			p.accessible("sent", 1280, 360)
			p.click("#redis")
			p.degraded()
			p.send(10)
			p.click("[name=closer][value=sliding-window]")
			p.run(`const set = setTimeout; setTimeout = (f, ms) => ms === 2000 ? 0 : set(f, ms)`) // "Copied" stays
			p.click("[data-copy=code]")
			p.accessible("degraded, and copied", 1280, 360)
			p.click("#shares [data-asks='300 200 100']")
			p.until("shares are drawn", `tenants.every(t => t.now.gets > 0)`)
			p.accessible("all ask", 1280, 360, 320)

			p.click("#theme")
			require.Equal(t, scheme == "light", dark(), "the other theme")
			require.Equal(t, scheme == "light", eval[string](p, `$('theme').getAttribute('aria-checked')`) == "true")
			sent := p.counts("token-bucket")
			p.do(chromedp.Reload())
			p.until("loaded", loaded)
			require.Equal(t, scheme == "light", dark(), "it is kept")
			require.Equal(t, sent, p.counts("token-bucket"), "as the buckets are")
			p.drawn()
			require.Contains(t, p.text("#age"), "via A")
		})
	}
}

// axe returns the source of axe-core, which finds what shuts people out.
func axe(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("..", "..", "bin", "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		missing(t, "axe-core (npm install --no-save --prefix bin axe-core@4.14.1, in the root)", err)
	}
	return string(source)
}
