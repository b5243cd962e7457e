package browser

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

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
