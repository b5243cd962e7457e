package browser

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// rates waits until a row of the table fits an expression of a (asks), g (gets), f (fair share) and d (denied).
func (p page) rates(tenant, fits string) {
	p.t.Helper()
	p.until(tenant+": "+fits, fmt.Sprintf(`(() => {
		const row = [...$('shares-table').rows].find(row => row.cells[0].textContent === %q)
		const [a, g, f, d] = [...row.cells].slice(1).map(cell => parseFloat(cell.textContent))
		return %s
	})()`, tenant, fits))
}

// TestShares moves the sliders by keyboard, and sees what each tenant gets.
func TestShares(t *testing.T) {
	t.Parallel()
	p := open(t, example(t))
	asks := func(tenant string) string { return p.text("#" + tenant + " output") }
	for _, tenant := range []string{"acme", "beta", "core"} {
		require.Equal(t, "off", asks(tenant))
		p.rates(tenant, `a === 0 && g === 0 && f === 0`)
	}

	p.press("#acme-asks", kb.ArrowRight, 40)
	p.press("#beta-asks", kb.ArrowRight, 2)
	require.Equal(t, "200 a second", asks("acme"))
	require.Equal(t, "10 a second", eval[string](p, `$('beta-asks').getAttribute('aria-valuetext')`))
	p.rates("acme", `f === 40 && a > 60 && g < a && d > 0`)
	p.rates("beta", `f === 10 && g > 5 && d === 0`)
	p.rates("core", `g === 0 && f === 0`)
	p.rates("together", `f === 50`)
	p.until("said", `/^acme gets [\d.]+, beta gets [\d.]+, core gets 0\.0 a second/.test($('shares-said').textContent)`)
	require.Regexp(t, `^gets \d+\.\d a second$`, p.text("#acme .gets"))

	t.Run("the drawing", func(t *testing.T) {
		p.run(`$('shares').scrollIntoView()`)
		for _, kind := range []string{"share-line", "share-area", "fair-line", "asks-line"} {
			p.until(kind, fmt.Sprintf(`document.querySelector('[data-tenant=acme] .%s')?.getAttribute('d').length > 100`, kind))
		}
	})

	t.Run("weights", func(t *testing.T) {
		p.click("#shares [data-asks='300 200 100']")
		require.Equal(t, []string{"300 a second", "200 a second", "100 a second"},
			eval[[]string](p, `tenants.map(t => t.output.textContent)`))
		p.do(chromedp.Focus(chromedp.CSS("#core [type=radio]")), chromedp.KeyEvent(kb.ArrowRight))
		require.Equal(t, []int{1, 1, 2}, eval[[]int](p, `tenants.map(t => t.weight)`))
		p.rates("acme", `f === 12.5`)
		p.rates("core", `f === 25 && g > 0`)
		p.until("core gets more, in proportion to its weight", `tenants[2].now.gets > 1.4 * tenants[0].now.gets`)
	})

	t.Run("without Redis", func(t *testing.T) {
		p.click("#redis")
		p.degraded()
		p.until("each process decides", `tenants.every(t => t.now.local && t.now.gets > 0)`)
		p.run(`$('shares').scrollIntoView()`)
		p.until("drawn", `document.querySelector('[data-tenant=acme] .away')?.getAttribute('d') !== ''`)
		p.click("#redis")
		p.recovered()
	})

	t.Run("stop", func(t *testing.T) {
		p.click("#shares [data-asks='0 0 0']")
		p.rates("together", `a === 0 && g === 0`)
		require.Equal(t, "off", asks("core"))
		p.until("nothing is sent", `!sharing`)
	})
	require.Zero(t, p.counts("token-bucket").admitted, "the algorithms are apart")
}
