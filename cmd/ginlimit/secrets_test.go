package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestClientsThatReadAsAPartOfAURL are shown: an error is about them.
func TestClientsThatReadAsAPartOfAURL(t *testing.T) {
	t.Parallel()
	_, r, _ := start(t)
	const client = "user:bob@example.com"
	r.fails(exitUsage, "Block client user:bob@example.com under policy report for 1h0m0s? "+
		"Nobody can be asked here: give --yes", "block", "report", client, "1h")
	r.fails(exitUsage, `policy "login" counts by address, and "user:bob@example.com" is none`, "status", "login", client)
	r.fails(exitUsage, "open "+client+": no such file or directory", "apply", client)
	r.in = "- {policy: report, client: 'user:bob@example.com', limits: 1/h}\n" +
		"- {policy: report, client: c, limits: 'redis://user:xyz1 xyz2@127.0.0.1:1', for: 1h}\n" +
		"- {policy: report, client: c, limits: 1/h, for: 'redis://user:xyz1@127.0.0.1:1'}\n" +
		"- {policy: report, client: c, limits: 1/h, for: 'user:bob@example.com'}\n"
	got := r.run("apply", "-")
	require.Regexp(t, `^ginlimit: override 1, line 1: want one of until and for
override 2, line 2: limits: .*\(a URL, which is not shown\).*
override 3, line 3: for: \(a URL, which is not shown\) is no duration above 0, such as 90s, 15m, 2h or 7d
override 4, line 4: for: "user:bob@example.com" is no duration above 0, such as 90s, 15m, 2h or 7d
$`, got.errs)
	require.NotContains(t, got.errs, "xyz")
	r.in = "- {policy: login, client: 'user:bob@example.com', limits: 1/h, for: 1h}\n" +
		"- {policy: login, client: 'a b://c d', limits: 1/h, for: 1h}\n" +
		"- {policy: nobody, client: c, limits: 1/h, for: 1h}\n"
	require.Equal(t, `ginlimit: override 1, line 1: policy "login" counts by address, and "user:bob@example.com" is none
override 2, line 2: policy "login" counts by address, and (a URL, which is not shown) is none
`, r.run("apply", "-").errs)
}

// TestURLsInWrongPlaces are not shown where Redis answers, nor more of a text than them.
func TestURLsInWrongPlaces(t *testing.T) {
	t.Parallel()
	_, r, _ := start(t)
	file := filepath.Join(t.TempDir(), "file")
	for _, text := range hostileURLs {
		entries := fmt.Sprintf("- {policy: login, client: %q, limits: 1/h, for: 1h}\n"+
			"- {policy: %[1]q, client: c, limits: %[1]q, until: %[1]q, ? %[1]q : 1}\n", text)
		require.NoError(t, os.WriteFile(file, []byte(entries), 0o600))
		for _, args := range [][]string{{"policies", "--prefix", text}, {"status", "a", "b", "--prefix", text},
			{"doctor", "--prefix", text}, {"doctor", "--json", "--prefix", text}, {"top", "a", "--prefix", text}} {
			if strings.Contains(text, "@") || strings.Contains(text, "://") { // else it may be a prefix
				got := r.run(args...)
				require.NotContains(t, got.errs+got.out, "xyz", "%q: %q", text, args)
			}
		}
		if !strings.Contains(text, "://") {
			continue // it may be anything
		}
		for _, args := range [][]string{{"status", text, "c"}, {"status", "login", text}, {"block", "report", text, "1h"},
			{"block", "report", "c", text}, {"reset", "report", text}, {"override", "report", "c", text, "--for", "1h"},
			{"override", "report", "c", "1/h", "--for", text}, {"override", "report", text, "1/h", "--for", "1h"},
			{"apply", text}, {"apply", file}, {"status", "report", "c", "--limit", text}} {
			got := r.run(args...)
			require.NotContains(t, got.errs, "xyz", "%q: %q", text, args)
		}
		got := r.run("block", "report", text, "1h")
		require.Equal(t, "ginlimit: Block client (a URL, which is not shown) under policy report for 1h0m0s? "+
			"Nobody can be asked here: give --yes\n", got.errs, "%q", text)
	}
}

// TestURLsAmongWords are not shown, whatever stands beside them.
func TestURLsAmongWords(t *testing.T) {
	t.Parallel()
	const hidden = "(a URL, which is not shown)"
	for text, want := range map[string]string{
		`policy "login" has 'redis://x "y z', twice`:      `policy "login" has ` + hidden + `, twice`,
		`it's "a\"b://c d" (see "e f")`:                   `it's ` + hidden + ` (see "e f")`,
		`('a://b c') and $'\'d://e f' of g:h@i`:           `(` + hidden + `) and ` + hidden + ` of g:h@i`,
		"a b://c\nd://e f\ng":                             "a " + hidden + "\n" + hidden + " f\ng",
		`://a:b@c "`:                                      hidden + ` "`,
		`begins with rediss://`:                           `begins with rediss://`,
		`ERR command AUTH, with args beginning with: 'b'`: `ERR command AUTH`,
	} {
		require.Equal(t, want, withoutURLs(text))
	}
}
