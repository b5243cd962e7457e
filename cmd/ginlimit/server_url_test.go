package main

import (
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostileURLs have passwords that nobody escaped, and other mistakes. Each word of a password has the letters xyz.
var hostileURLs = []string{
	"redis://user:?xyz1@127.0.0.1:1",
	"redis://user:xyz1?xyz2@127.0.0.1:1",
	"redis://user:xyz1#xyz2@127.0.0.1:1",
	"redis://user:xyz1/xyz2@127.0.0.1:1",
	"redis://user:12/xyz2@127.0.0.1:1",
	"redis://user:12?xyz2@127.0.0.1:1",
	"redis://user:12#xyz2@127.0.0.1:1",
	"redis://user:xyz1@xyz2@127.0.0.1:1",
	"redis://user:%xyz1@127.0.0.1:1",
	"redis://user:xyz1 xyz2@127.0.0.1:1",
	"redis://user:xyz1\"xyz2@127.0.0.1:1",
	"redis://user:xyz1\nxyz2@127.0.0.1:1",
	"redis://user:xyz1\x7fxyz2@127.0.0.1:1",
	"redis://user:xyz1\\xyz2@127.0.0.1:1",
	"redis://user:xyz1[xyz2@127.0.0.1:1",
	"redis://user:xyz1@127.0.0.1:1xyz2",
	"redis://user:xyz1@127.0.0.1:1,b:xyz2",
	"redis://user:xyz1@[::1",
	"redis://user:xyz1@127.0.0.1:1/xyz2",
	"redis://user:xyz1@127.0.0.1:1/1/xyz2",
	"redis://user:xyz1@127.0.0.1:1?xyz2=xyz3",
	"redis://user:xyz1@127.0.0.1:1?db=xyz2",
	"redis://user:xyz1@127.0.0.1:1?dial_timeout=xyz2",
	"redis://user:xyz1@127.0.0.1:1#xyz2",
	"redis://user:xyz1",
	"redis://user:xyz1:127.0.0.1:1",
	"redis://user:xyz1@127.0.0.1:1 xyz2",
	"redis:/user:xyz1@127.0.0.1:1",
	"redis:user:xyz1@127.0.0.1:1",
	"rediss://user:xyz1#@127.0.0.1:1",
	"redisxyz://user:xyz1@127.0.0.1:1",
	"xyz1://xyz2@127.0.0.1:1",
	"://user:xyz1@127.0.0.1:1",
	"user:xyz1@127.0.0.1:1",
	"user:?xyz1@127.0.0.1:1",
	"user:xyz1/xyz2@127.0.0.1:1",
	"user:xyz1:127.0.0.1:1",
	"unix://user:xyz1@",
	"unix://user:xyz1/xyz2@/none/socket",
	"unix://user:12/xyz2@/none/socket",
	"unix://user:xyz1@/none/socket?db=xyz2",
	"unix://user:xyz1@/none/socket?xyz2",
	"unix://user:xyz1@/none/socket#xyz2",
}

// TestErrorsHaveNoPartOfAURL but host and port, or the socket, whether the URL is where it belongs or not.
func TestErrorsHaveNoPartOfAURL(t *testing.T) {
	t.Parallel()
	for _, text := range hostileURLs {
		r := newRunner(t, text)
		for _, args := range [][]string{
			{"policies"}, {"doctor"}, {"doctor", "--json"}, {"policies", "--redis", text}, {"policies", "--redis=" + text},
			{"policies", "--cluster"}, {"policies", "--sentinel", "main"}, {"overrides", "-y", "--username", "app"},
		} {
			got := r.run(append(args, "--timeout", "100ms")...)
			require.NotContains(t, got.errs+got.out, "xyz", "%q: %q", text, args)
		}
		if !strings.Contains(text, "://") {
			continue // it may be anything
		}
		r = newRunner(t, "redis://127.0.0.1:1")
		for _, args := range [][]string{
			{text}, {"policies", text}, {"doctor", "-r" + text}, {"policies", "-no=" + text}, {"policies", "--" + text},
			{"policies", "--timeout", text}, {"policies", "--json=" + text}, {"policies", "--ca", text},
			{"policies", "--key-secret-file", text}, {"top", "p", "-n", text}, {"block", "p", "c", text}, {"apply", text},
			{"override", "p", "c", text, "--for", "1h"}, {"override", "p", "c", "1/h", "--for", text},
			{"override", "p", "c", "1/h", "--until", text}, {"help", text}, {"completion", text},
		} {
			got := r.run(args...)
			require.NotContains(t, got.errs+got.out, "xyz", "%q: %q", text, args)
		}
	}
}

// FuzzURL wants an error that quotes nothing, or addresses that are no more than hosts and ports.
func FuzzURL(f *testing.F) {
	for _, text := range append(slices.Clone(hostileURLs), "unix://@/0") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		one, addrs, err := splitURL(text)
		if err != nil {
			require.Contains(t, []error{errScheme, errHost, errEscape, errUnixURL, errOptions}, err)
			return
		}
		for _, addr := range addrs {
			if strings.HasPrefix(text, "unix://") { // the path is what is shown
				_, rest, _ := strings.Cut(text, "://")
				require.NotContains(t, rest[strings.IndexAny(rest, "/?"):], "@", "%q", text)
				continue
			}
			host, port, err := net.SplitHostPort(addr)
			require.NoError(t, err)
			require.Regexp(t, `^[0-9]+$`, port)
			require.NotContains(t, host, "@")
			require.NotContains(t, host, "/")
			if one.Password != "" { // it stands before what is shown
				require.Less(t, strings.Index(text, ":"), strings.LastIndex(text, "@"))
			}
		}
	})
}

// TestEscapedPasswords arrive as they are.
func TestEscapedPasswords(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"?a", "a/b", "a#b", "a@b", "%41", "a b", ":", "\n", "é", `"'\`} {
		for _, base := range []string{"redis://u:%s@[::1]:7/3", "rediss://u:%s@h.example:7", "unix://u:%s@/a/socket?db=3"} {
			text := strings.Replace(base, "%s", url.QueryEscape(password), 1)
			text = strings.ReplaceAll(text, "+", "%20")
			one, addrs, err := parseURL(text)
			require.NoError(t, err, text)
			require.Equal(t, password, one.Password)
			require.Len(t, addrs, 1)
		}
	}
}
