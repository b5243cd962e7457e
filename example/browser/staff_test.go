package browser

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// buildGateway makes the program that serves the page of operators, once.
var buildGateway = sync.OnceValues(func() (string, error) {
	path := filepath.Join(programs, "gateway")
	command := exec.Command("go", "build", "-o", path, ".")
	command.Dir = "../gateway"
	if out, err := command.CombinedOutput(); err != nil {
		return path, fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// gateway runs the program until the test ends, and returns the address of its page.
func gateway(t *testing.T) (address string) {
	t.Helper()
	chromium(t) // without it there is nothing to build for
	path, err := buildGateway()
	require.NoError(t, err)
	command := exec.Command(path, "-addr", "127.0.0.1:0", "-staff", "secret")
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
	return regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
}

// staff opens the page as somebody of the staff.
func staff(t *testing.T, address string, setup ...chromedp.Action[chromedp.Void]) page {
	t.Helper()
	p := openAt(t, address, "http://staff:secret@"+address+"/staff/", setup...)
	p.until("loaded", `document.readyState === 'complete'`)
	return p
}

// look opens one of the pages.
func (p page) look(address, path string) {
	p.t.Helper()
	p.do(chromedp.Navigate("http://" + address + "/staff/" + path))
	p.until("loaded", `document.readyState === 'complete'`)
}

// sendForm fills fields of a form in, presses Enter in the last one, and waits for another page.
func (p page) sendForm(form string, fields ...string) {
	p.t.Helper()
	p.run(`window.before = true`)
	for i := 0; i+1 < len(fields); i += 2 {
		field := chromedp.CSS(form + " [name=" + fields[i] + "]")
		p.run(fmt.Sprintf(`document.querySelector(%q).value = ''`, string(field)))
		p.do(chromedp.Focus(field))
		for _, letter := range fields[i+1] {
			p.do(chromedp.KeyEvent(string(letter)))
		}
	}
	p.do(chromedp.KeyEvent(kb.Enter))
	p.until("another page", `window.before === undefined && document.readyState === 'complete'`)
}

// refuses says that requests of a path will be answered with an error.
func (p page) refuses(path string) {
	p.events.mu.Lock()
	defer p.events.mu.Unlock()
	p.events.refused = path
}

// upload chooses a file on the page of overrides, and sends it by the keyboard.
func (p page) upload(file string) {
	p.t.Helper()
	p.run(`window.before = true
		const files = new DataTransfer()
		files.items.add(new File([` + strconv.Quote(file) + `], 'overrides.yaml'))
		document.querySelector('[type=file]').files = files.files`)
	p.press("form[action=import] button", kb.Enter, 1)
	p.until("another page", `window.before === undefined && document.readyState === 'complete'`)
}

// TestStaffPages has axe look at each page, in both themes, on a phone and on a desk.
func TestStaffPages(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			axe, address := axe(t), gateway(t)
			p := staff(t, address, prefers("color-scheme", scheme))
			require.Equal(t, scheme == "dark", eval[bool](p,
				`getComputedStyle(document.body).backgroundColor.match(/\d+/g).every(v => v < 64)`))
			p.until("decisions are drawn, by the page's refresh", `document.querySelector('rect.denied') !== null`)
			check := func(what string) {
				t.Helper()
				p.run(axe)
				p.accessible(what, 1280, 390)
			}
			check("overview")
			for _, path := range []string{"policies", "policy?name=api+key", "overrides", "health", "client"} {
				p.look(address, path)
				check(path)
			}
			p.sendForm("form", "policy", "api key", "client", "nobody")
			check("a client")
			p.sendForm("form:has([value=override])", "limits", "600/m", "ends", "1h", "note", "a launch")
			require.Contains(t, p.text("main"), "Limit client nobody under policy api key to 600/m instead of 60/m")
			check("before a change")
			p.do(chromedp.Focus(chromedp.CSS("form[action=change] button")))
			p.run(`window.before = true`)
			p.do(chromedp.KeyEvent(kb.Enter))
			p.until("another page", `window.before === undefined && document.readyState === 'complete'`)
			require.Contains(t, p.text("main"), "Done: Limit client nobody")
			check("after a change")
			require.NotContains(t, eval[string](p, `location.href`), "nobody", "proxies log it")
			p.look(address, "overrides")
			require.Contains(t, p.text("main"), "a launch")
			check("an override")
			p.upload("[{policy: api key, client: nobody, limits: 700/m, for: 2h}, " +
				"{policy: user, all: true, limits: 4/m, for: 1h}]")
			require.Contains(t, p.text("main"), "1 new, and 1 in place of others. All others stay.")
			check("before an import")
			p.press("form[action=apply] button", kb.Enter, 1)
			p.until("done", `document.querySelector('.good') !== null`)
			require.Contains(t, p.text("main"), "700/m")
			check("after an import")
			p.look(address, "overrides")
			p.refuses("/staff/import") // with 400, which the browser logs
			p.upload("[{policy: none, all: true, limits: 4/m, for: 1h}]")
			require.Contains(t, p.text("main"), "Override 1, line 1: no process serves a policy")
			check("a file with errors")
			response, err := http.Get("http://staff:secret@" + address + "/staff/policy?name=none")
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusBadRequest, response.StatusCode)
		})
	}
}

// TestStaffWithoutScript: each page is whole without JavaScript, and the keyboard alone finds its links.
func TestStaffWithoutScript(t *testing.T) {
	t.Parallel()
	address := gateway(t)
	p := staff(t, address, withoutScript())
	require.Contains(t, p.text("main"), "60/m, 2 in flight")
	require.False(t, eval[bool](p, `document.getElementById('live').checkVisibility()`))
	for range 3 { // the link to the content, the name, the first page
		p.do(chromedp.KeyEvent(kb.Tab))
	}
	require.Equal(t, "Overview", eval[string](p, `document.activeElement.textContent`))
	p.do(chromedp.KeyEvent(kb.Tab), chromedp.KeyEvent(kb.Enter))
	p.until("policies", `location.pathname.endsWith('/policies') && document.readyState === 'complete'`)
	p.look(address, "client")
	p.sendForm("form", "policy", "api key", "client", "carol")
	require.Contains(t, p.text("h1"), "Client carol")
}

// TestStaffScreenshot takes the picture of the README and of docs/operations.md.
func TestStaffScreenshot(t *testing.T) {
	if *screenshot == "" || !strings.Contains(*screenshot, "admin") {
		t.Skip("-screenshot names no file with admin in its name")
	}
	address := gateway(t)
	require.Eventually(t, func() bool {
		response, err := http.Get("http://staff:secret@" + address + "/staff/policy?name=api+key")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return err == nil && strings.Count(string(text), `rect class="denied"`) > 4
	}, 8*patience, time.Second, "minutes of decisions")
	p := staff(t, address, chromedp.EmulateViewport(1280, 860), prefers("color-scheme", "light"))
	p.look(address, "client")
	p.sendForm("form", "policy", "api key", "client", "dave")
	p.sendForm("form:has([value=override])", "limits", "600/m", "ends", "2h", "note", "their launch")
	p.click("form[action=change] button")
	p.until("done", `document.querySelector('.good') !== null`)
	p.look(address, "")
	picture, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*screenshot, picture, 0o644))
}

// withoutScript has the browser run none of the page's scripts.
func withoutScript() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled,
			emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	})
}
