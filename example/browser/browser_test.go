package browser

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

func TestBurst(t *testing.T) {
	t.Parallel()
	program := example(t, "")
	p := open(t, program.address)
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

	t.Run("the server says the same", func(t *testing.T) {
		var view struct {
			Processes [][]struct{ Remaining int }
		}
		require.NoError(t, json.Unmarshal([]byte(get(t, "http://"+program.address+"/play?limit=5/m", http.StatusOK)), &view))
		for _, process := range view.Processes {
			for _, seen := range process {
				require.Zero(t, seen.Remaining)
			}
		}
	})
	t.Run("the countdown runs", func(t *testing.T) {
		for _, lane := range lanes {
			wait := func() float64 {
				number, err := strconv.ParseFloat(regexp.MustCompile(`[\d.]+`).FindString(p.text("#"+lane+" .wait")), 64)
				require.NoError(t, err)
				return number
			}
			first := wait()
			require.Eventually(t, func() bool { return wait() < first }, patience, 50*time.Millisecond, lane)
		}
		p.until("it runs between two answers", `(() => {
			const { at } = lanes[0].seen, wait = lanes[0].seen.wait(seconds())
			window.first ??= {}
			window.first[at] ??= wait
			return wait < window.first[at] - .05
		})()`)
	})
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
			scales := eval[[]string](p, `[...document.querySelectorAll('[data-row=`+lane+`] text.end')].map(e => e.textContent)`)
			require.Equal(t, []string{"0", "10", "0"}, scales[1:])
			if lane != "token-bucket" { // which has had 10 tokens
				require.Equal(t, "5", scales[0])
			}
			// The admitted and the denied are as many: linear bars of one height.
			height := func(kind string) float64 {
				return eval[float64](p,
					fmt.Sprintf(
						`-Number(document.querySelector('[data-row=%s] .%s').getAttribute('d').match(/v(-[\d.]+)/)[1])`, lane, kind))
			}
			require.InDelta(t, height("admitted"), height("denied"), 0.1)
		}
		require.Equal(t, "120 s", p.text("#span"))
		require.Equal(t, []string{"now", "−20 s", "−40 s", "−60 s", "−80 s", "−100 s", "−120 s"},
			eval[[]string](p, `[...document.querySelectorAll('#timeline > text')].map(e => e.textContent)`))
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
	p := open(t, example(t, "").address)
	p.limit5PerMinute()
	for { // a busy machine may have Redis late
		p.click("#reset")
		p.until("full", `document.querySelectorAll('.lane.full').length === 3`)
		p.click("[name=via][value='0']")
		p.send(1)
		p.click("[name=via][value='1']")
		p.send(1)
		if !p.local() {
			break
		}
		p.recovered()
	}
	for _, lane := range lanes {
		require.Equal(t, counts{2, 0}, p.counts(lane))
		require.Equal(t, []string{"A sees 3", "B sees 3"}, p.shared(lane))
	}
	require.Equal(t, p.text("#address-1"), regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(p.text("#curl")))
	get(t, "http://"+p.text("#address-1")+"/try?limit=5/m", http.StatusOK)
	p.until("A sees what B took",
		`document.querySelector('#token-bucket .shared').textContent.startsWith('A sees 2B sees 2')`)
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
		shared := p.shared("token-bucket") // more than 2 if the machine is so busy that tokens have come back
		require.Regexp(t, "^A sees [2-5]$", shared[0], "Redis remembers")
		require.Equal(t, "B"+shared[0][1:], shared[1])
	}
}

func TestKeyboard(t *testing.T) {
	t.Parallel()
	p := open(t, example(t, "").address)
	p.until("the switch is shown", `!$('redis').hidden`)
	p.tabTo("theme")
	theme := eval[string](p, `$('theme').getAttribute('aria-checked')`)
	p.do(chromedp.KeyEvent(" "))
	require.NotEqual(t, theme, eval[string](p, `$('theme').getAttribute('aria-checked')`))
	p.tabTo("rate")
	p.do(chromedp.KeyEvent(kb.End))
	p.tabTo("period")
	p.do(chromedp.KeyEvent(kb.End))
	p.tabTo("burst")
	p.do(chromedp.KeyEvent(kb.End))
	require.Equal(t, "50/m", p.text("#limit"))
	require.Equal(t, "50 requests every 1 min", eval[string](p, `$('rate').getAttribute('aria-valuetext')`))
	p.tabTo("")
	p.do(chromedp.KeyEvent(kb.ArrowRight))
	require.Equal(t, 1, eval[int](p, `via()`))
	p.tabTo("redis")
	p.do(chromedp.KeyEvent(" "))
	p.degraded()
	p.do(chromedp.KeyEvent(kb.Enter))
	p.recovered()
	p.tabTo("")
	p.do(chromedp.KeyEvent(kb.Enter))
	p.answered(1)
	p.tabTo("")
	p.do(chromedp.KeyEvent(" "))
	p.answered(11)
	p.tabTo("")
	p.do(chromedp.KeyEvent(kb.Enter))
	p.answered(61)
	p.tabTo("traffic")
	p.tabTo("reset")
	p.do(chromedp.KeyEvent(kb.Enter))
	p.answered(0)
	p.tabTo("")
	require.Equal(t, "closer", eval[string](p, `document.activeElement.name`))
	p.do(chromedp.KeyEvent(kb.ArrowRight))
	p.until("the other line", `$('code').textContent.includes('FixedWindow')`)
	for _, id := range []string{"text", "code", "curl"} {
		p.tabTo(id)
		p.tabTo("")
		require.Equal(t, id, eval[string](p, `document.activeElement.dataset.copy`))
	}
}

// TestEverySize has axe look at the page, in both themes, on a phone and on a desk, as it changes.
func TestEverySize(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			axe := axe(t)
			p := open(t, example(t, "").address, prefers("color-scheme", scheme))
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

func TestApplicationRestarts(t *testing.T) {
	t.Parallel()
	program := example(t, "")
	p := open(t, program.address)
	p.send(1)
	p.connectionsMayFail()
	program.stop()
	p.until("the page says so", `!$('gone').hidden`)
	p.click("[data-send='10']")
	p.until("said", `$('said').textContent === 'The requests were not answered.'`)
	require.Equal(t, 1, p.counts("token-bucket").admitted)
	p.press("#traffic", kb.ArrowRight, 5)

	startAt(t, program.address, "")
	p.until("it is back", `$('gone').hidden`)
	p.until("traffic goes on", `lanes[0].admitted > 3`)
}

// get returns the body that an address answers, whatever the browser does.
func get(t *testing.T, address string, status int) string {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	response, err := http.Get(u.String())
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, status, response.StatusCode)
	return string(body)
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
