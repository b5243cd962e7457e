package browser

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what must happen, on a machine that is busy with others.
const patience = time.Minute

// lanes are the algorithms that the page shows.
var lanes = []string{"token-bucket", "fixed-window", "sliding-window"}

// loaded is true once the page has heard from the application.
const loaded = `typeof lanes === 'object' && lanes[2].seen?.at > 0`

// page is the live page, open in a browser.
type page struct {
	t      *testing.T
	ctx    context.Context
	events *events
}

// events are what the browser tells.
type events struct {
	mu      sync.Mutex
	faults  []string
	asked   int
	refused string // the path of requests that are answered with an error
}

// open shows the page at address after setup. The test fails if the page errs or asks another host for anything.
func open(t *testing.T, address string, setup ...chromedp.Action[chromedp.Void]) page {
	t.Helper()
	p := openAt(t, address, "http://"+address, setup...)
	p.until("loaded", loaded)
	return p
}

// openAt is open for a page of any URL at the address.
func openAt(t *testing.T, address, at string, setup ...chromedp.Action[chromedp.Void]) page {
	t.Helper()
	ctx := tab(t)

	seen := &events{}
	fault := func(format string, args ...any) { seen.faults = append(seen.faults, fmt.Sprintf(format, args...)) }
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			fault("exception: %+v", e.ExceptionDetails)
		case *runtime.EventConsoleAPICalled:
			fault("console: %s", e.Type)
		case *log.EventEntryAdded:
			if seen.refused == "" || !strings.HasSuffix(e.Entry.URL, seen.refused) {
				fault("log: %s %s", e.Entry.Text, e.Entry.URL)
			}
		case *network.EventRequestWillBeSent:
			seen.asked++
			if u, err := url.Parse(e.Request.URL); err != nil || u.Scheme != "data" && u.Host != address {
				fault("another host: %s", e.Request.URL)
			}
		}
	}))
	t.Cleanup(func() { // before the browser ends, which is what was deferred above
		seen.mu.Lock()
		defer seen.mu.Unlock()
		assert.Empty(t, seen.faults)
		assert.Positive(t, seen.asked)
	})
	p := page{t, ctx, seen}
	p.do(setup...)
	p.do(chromedp.Navigate(at))
	return p
}

// tab starts a browser until the test ends.
func tab(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewExecAllocator(ctx, append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(chromium(t)),
		chromedp.NoSandbox, // root has none
		chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WindowSize(1280, 900))...)
	t.Cleanup(stop)
	ctx, stop = chromedp.NewContext(ctx)
	t.Cleanup(stop)
	return ctx
}

func (p page) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, actions...))
}

// run runs a script, whatever its value is.
func (p page) run(script string) {
	p.t.Helper()
	eval[int](p, script+"\n;0")
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

func (p page) text(selector string) string {
	p.t.Helper()
	return eval[string](p, fmt.Sprintf(`document.querySelector(%q).textContent`, selector))
}

// counts are a lane's requests.
type counts struct{ admitted, denied int }

func (p page) counts(lane string) counts {
	p.t.Helper()
	return counts{p.number("#" + lane + " .admitted dd"), p.number("#" + lane + " .denied dd")}
}

// left is how many requests a lane has left.
func (p page) left(lane string) int {
	p.t.Helper()
	return p.number("#" + lane + " .left b")
}

func (p page) number(selector string) int {
	p.t.Helper()
	return eval[int](p, fmt.Sprintf(`Number(document.querySelector(%q).textContent)`, selector))
}

// shared is what both processes see of a lane.
func (p page) shared(lane string) []string {
	p.t.Helper()
	return eval[[]string](p, `[...document.querySelectorAll('#`+lane+` .shared span')].map(e => e.textContent)`)
}

// field is a cell of the last answer's table: 1 is what was sent, 2 what is true now.
func (p page) field(name string, column int) string {
	p.t.Helper()
	return eval[string](p, fmt.Sprintf(`document.querySelector('[data-name="%s"]').cells[%d].textContent`, name, column))
}

func (p page) click(selector string) {
	p.t.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector)))
}

// press gives an element the focus, and presses a key n times.
func (p page) press(selector, key string, n int) {
	p.t.Helper()
	p.do(chromedp.Focus(chromedp.CSS(selector)))
	for range n {
		p.do(chromedp.KeyEvent(key))
	}
}

// send clicks on 1, 10 or 50, and waits for the answers.
func (p page) send(n int) {
	p.t.Helper()
	before := p.counts("sliding-window")
	p.click(fmt.Sprintf("[data-send='%d']", n))
	p.answered(before.admitted + before.denied + n)
}

// answered waits for n requests in all to be answered and drawn.
func (p page) answered(n int) {
	p.t.Helper()
	p.until(fmt.Sprint(n, " answers"), fmt.Sprintf(`!sending && [...document.querySelectorAll('.counts')].every(e =>
		[...e.querySelectorAll('dd')].reduce((sum, dd) => sum + Number(dd.textContent), 0) === %d)`, n))
	p.drawn()
}

// drawn waits for everything to be drawn again.
func (p page) drawn() {
	p.t.Helper()
	p.until("drawn", fmt.Sprintf(`drawnAt > %f`, eval[float64](p, `seconds()`)))
}

// limit5PerMinute moves the sliders so that no token comes back while a test looks.
func (p page) limit5PerMinute() {
	p.t.Helper()
	p.press("#period", kb.End, 1)
	p.press("#burst", kb.ArrowLeft, 5)
	require.Equal(p.t, "5/m", p.text("#limit"))
	p.until("the server knows", `lanes.every(lane => lane.limit.split(' ')[0] === '5/m')`)
}

// burst10 sends 10 requests to full buckets. On a busy machine Redis can be late, and then it starts again.
func (p page) burst10() {
	p.t.Helper()
	for {
		p.send(10)
		if !p.local() {
			return
		}
		p.recovered()
		p.click("#reset")
		p.until("full", `document.querySelectorAll('.lane.full').length === 3`)
		p.answered(0)
	}
}

// local is true if a decision was made without Redis.
func (p page) local() bool {
	p.t.Helper()
	return eval[bool](p, `lanes.some(lane => lane.events.some(e => e.local) || lane.tokens.some(t => t.local))`)
}

func (p page) degraded() {
	p.t.Helper()
	p.until("degraded", `document.body.classList.contains('degraded') && $('status').textContent.startsWith('Degraded')
		&& lanes.every(lane => lane.tokens.every(t => t.local))`)
}

func (p page) recovered() {
	p.t.Helper()
	p.until("recovered", `!document.body.classList.contains('degraded') && $('status').textContent.startsWith('It counts')
		&& lanes.every(lane => lane.tokens.every(t => !t.local))`)
}

// cutOff returns the elements whose text does not fit into them. On a phone, the bar of buttons is wider than main.
func (p page) cutOff() []string {
	p.t.Helper()
	return eval[[]string](p, `[...document.querySelectorAll('body *')]
		.filter(e => !e.closest('svg, .unseen, #said, thead') && e.tagName !== 'MAIN'  && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
		.map(e => e.tagName + '#' + e.id + '.' + e.className)`)
}

// accessible runs axe, which the page must have loaded, in each width. Nothing is cut off, or scrolls sideways.
func (p page) accessible(state string, widths ...int64) {
	p.t.Helper()
	for _, width := range widths {
		what := fmt.Sprint(state, ", ", width)
		p.do(chromedp.EmulateViewport(width, 740))
		p.until(what, fmt.Sprintf(`document.documentElement.clientWidth === %d`, width))
		require.Equal(p.t, width, eval[int64](p, `document.documentElement.scrollWidth`), "%s: it scrolls sideways", what)
		assert.Empty(p.t, p.cutOff(), what)
		p.run(`window.found = undefined; axe.run({ rules: { 'label-content-name-mismatch': { enabled: true } } }).then(r => {
			window.found = r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' '))
		})`)
		p.until("axe has looked", `window.found !== undefined`)
		assert.Empty(p.t, eval[[]string](p, `window.found`), what)
	}
}
