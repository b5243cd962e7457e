package browser

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

var screenshot = flag.String("screenshot", "", "the file to write a picture of the page to")

// TestScreenshot takes the README's picture: bursts, steady traffic above the limit, a while without Redis.
func TestScreenshot(t *testing.T) {
	if *screenshot == "" {
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
