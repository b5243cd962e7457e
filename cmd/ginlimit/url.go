package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

// Errors of a URL of Redis. They quote nothing: the password may be in any part of a URL that is mistyped.
var (
	errScheme  = errors.New("want the scheme redis, rediss or unix")
	errHost    = errors.New("want HOST, HOST:PORT or [IPV6]:PORT after the @, several with commas")
	errEscape  = errors.New("in a password, write / as %2F, ? as %3F, # as %23, % as %25 and a space as %20")
	errUnixURL = errors.New("a unix socket has a path such as /run/redis.sock, and no host")
	errOptions = errors.New("want a database number and no other option than those of go-redis after the address; " +
		errEscape.Error())
)

// parseURL reads a URL that may have several addresses.
func parseURL(text string) (*redis.Options, []string, error) {
	one, addrs, err := splitURL(text)
	if err != nil {
		return nil, nil, usage("the URL of Redis: %w", err)
	}
	return one, addrs, nil
}

func splitURL(text string) (*redis.Options, []string, error) {
	if !strings.Contains(text, "://") {
		text = "redis://" + text
	}
	scheme, rest, _ := strings.Cut(text, "://")
	end := strings.IndexAny(rest+"/", "/?#")
	user, hosts, tail := "", rest[:end], rest[end:]
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		user, hosts = hosts[:at+1], hosts[at+1:]
	}
	switch {
	case scheme != "redis" && scheme != "rediss" && scheme != "unix":
		return nil, nil, errScheme
	case strings.ContainsAny(tail, "@#"): // what stands before the @ is a password, and no host
		return nil, nil, errEscape
	case scheme == "unix" && (hosts != "" || strings.Trim(tail, "/ ") == ""):
		return nil, nil, errUnixURL
	}
	var addrs []string
	for _, host := range strings.Split(hosts, ",") {
		addr, ok := address(host)
		if !ok {
			return nil, nil, errHost
		}
		addrs = append(addrs, addr)
	}
	if scheme != "unix" {
		hosts = addrs[0]
	}
	one, err := redis.ParseURL(scheme + "://" + user + hosts + tail)
	switch {
	case err != nil && !strings.ContainsAny(tail, "/?"):
		return nil, nil, errEscape
	case err != nil:
		return nil, nil, errOptions
	case scheme == "unix":
		addrs = []string{one.Addr}
	}
	return one, addrs, nil
}

// address returns an address with its port, and whether it is one: what else stands there may be a password.
func address(text string) (string, bool) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = text, "6379"
		if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
			host = inner[:len(inner)-1]
		}
	}
	if host == "" {
		host = "localhost"
	}
	number, err := strconv.ParseUint(port, 10, 16)
	_, notIP := netip.ParseAddr(host)
	isName := !strings.ContainsFunc(host, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-._", r)
	})
	return net.JoinHostPort(host, port), err == nil && number > 0 && (notIP == nil || isName)
}

// spoken are the words of what this tool says, as [word] and %q write the text of others: only between quotes it has
// spaces.
var spoken = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"|\$'(?:[^'\\\n]|\\.)*'|'[^'\n]*'|[^\s"'(\[]\S*`)

// withoutURLs returns what the tool says without the URLs in it: somebody may give one in the place of a client or a
// file.
func withoutURLs(text string) string {
	text, _, _ = strings.Cut(text, operate.Arguments)
	return spoken.ReplaceAllStringFunc(text, func(word string) string {
		if _, rest, _ := strings.Cut(word, "://"); rest != "" {
			return operate.NotShown
		}
		return word
	})
}

// fileError is the error of a file that cannot be read. It has the file's name as [word] writes it.
func fileError(err error) error {
	if of := (*fs.PathError)(nil); errors.As(err, &of) {
		err = fmt.Errorf("%s %s: %w", of.Op, word(of.Path), of.Err)
	}
	return usageError{err}
}
