package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// files are the paths of the peers' sources. Empty is none.
type files struct{ Sub2api, LiteLLM string }

// The scripts in the sources.
var (
	acquireOfSub2api   = regexp.MustCompile("(?s)\\bacquireScript\\s*=\\s*redis\\.NewScript\\(`(.*?)`\\)")
	batchOfLiteLLM     = regexp.MustCompile(`(?s)\bBATCH_RATE_LIMITER_SCRIPT\s*=\s*"""(.*?)"""`)
	incrementOfLiteLLM = regexp.MustCompile(`(?s)\bTOKEN_INCREMENT_SCRIPT\s*=\s*"""(.*?)"""`)
)

// readScripts returns the scripts in a file that the patterns find, as they are.
func readScripts(path string, patterns ...*regexp.Regexp) (all []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, pattern := range patterns {
		found := pattern.FindSubmatch(text)
		switch {
		case found == nil:
			errs = append(errs, fmt.Errorf("%s: nothing matches %s", path, pattern))
		case strings.HasSuffix(path, ".py") && strings.Contains(string(found[1]), `\`):
			errs = append(errs, fmt.Errorf("%s: Python would read an escape in %s", path, pattern))
		default:
			all = append(all, string(found[1]))
		}
	}
	return all, errors.Join(errs...)
}

// systems returns ginlimit, and the peers whose files are given.
func (f files) systems() ([]system, error) {
	all := []system{newGinlimit()}
	if f.Sub2api != "" {
		scripts, err := readScripts(f.Sub2api, acquireOfSub2api)
		if err != nil {
			return nil, err
		}
		all = append(all, newSub2api(scripts[0], false), newSub2api(scripts[0], true))
	}
	if f.LiteLLM != "" {
		scripts, err := readScripts(f.LiteLLM, batchOfLiteLLM, incrementOfLiteLLM)
		if err != nil {
			return nil, err
		}
		all = append(all, newLiteLLM(scripts[0], scripts[1]))
	}
	return all, nil
}

// sayMissing says how to get the systems that are left out.
func (f files) sayMissing(w io.Writer) {
	for _, peer := range []struct{ name, given, flag, file, repository, commit string }{
		{"sub2api", f.Sub2api, "-sub2api", "backend/internal/repository/concurrency_cache.go", "Wei-Shaw/sub2api",
			"0073928287d6bf43ebaad4c03e38630889be15b9"},
		{"LiteLLM", f.LiteLLM, "-litellm", "litellm/proxy/hooks/parallel_request_limiter_v3.py", "BerriAI/litellm",
			"00353f5fd7c76cb8da94de4883c0e7b32cfb358c"},
	} {
		if peer.given == "" {
			fmt.Fprintf(w, "%s is left out. For it, check out the repository %s (commit %s) and add %s <checkout>/%s\n",
				peer.name, peer.repository, peer.commit, peer.flag, peer.file)
		}
	}
}
