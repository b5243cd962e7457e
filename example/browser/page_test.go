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

func (p page) water() float64 {
	p.t.Helper()
	return eval[float64](p, waterLevel)
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

// waterLevel is how far down in the drawing the water stands, and tokens what that is meant to show.
const (
	waterLevel = `Number($('water').getAttribute('transform').match(/ ([\d.]+)\)/)[1])`
	tokens     = `((216 - ` + waterLevel + `) / 8.1)`
)
