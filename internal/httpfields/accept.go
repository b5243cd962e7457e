package httpfields

import (
	"cmp"
	"strconv"
	"strings"
)

// maxAccept is the longest Accept that is read; a longer one gets JSON.
const maxAccept = 1024

// PrefersText reports whether a request prefers plain text to JSON (RFC 9110, section 12.5.1). If
// the quality is equal, the more specific range wins, and else JSON. Separators in quoted strings
// are not told from others.
func PrefersText(accept string) bool {
	if accept == "" || accept == "*/*" || len(accept) > maxAccept {
		return false
	}
	var text, problem, json preference
	for media := range strings.SplitSeq(strings.ToLower(accept), ",") {
		name, parameters, _ := strings.Cut(media, ";")
		quality := 1.0
		for parameter := range strings.SplitSeq(parameters, ";") {
			if q, ok := strings.CutPrefix(strings.TrimSpace(parameter), "q="); ok {
				var err error
				if quality, err = strconv.ParseFloat(q, 64); err != nil || !(quality >= 0 && quality <= 1) {
					quality = 0
				}
			}
		}
		name = strings.TrimSpace(name)
		text.consider(name, "text/*", "text/plain", quality)
		problem.consider(name, "application/*", "application/problem+json", quality)
		json.consider(name, "application/*", "application/json", quality)
	}
	if problem.specificity < exact {
		problem = json // a client that accepts JSON accepts problem+json
	}
	better := cmp.Or(cmp.Compare(text.quality, problem.quality), cmp.Compare(text.specificity, problem.specificity))
	return text.quality > 0 && better > 0
}

// preference is the quality of a media type in Accept, by the most specific range that matches it.
type preference struct {
	specificity int
	quality     float64
}

const exact = 3

func (p *preference) consider(name, kind, media string, quality float64) {
	specificity := 0
	switch name {
	case media:
		specificity = exact
	case kind:
		specificity = 2
	case "*/*":
		specificity = 1
	}
	if cmp.Or(cmp.Compare(specificity, p.specificity), cmp.Compare(quality, p.quality)) > 0 && specificity > 0 {
		*p = preference{specificity, quality}
	}
}
