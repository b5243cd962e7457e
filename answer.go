package ginlimit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
)

// The bodies of the default answers (RFC 9457). quota-exceeded and temporary-reduced-capacity are problem types of
// draft-ietf-httpapi-ratelimit-headers-11, section 5; the others mean no more than their status.
const (
	problemQuota = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":[%s]}`
	problemCapacity = `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
		`"title":"Request cannot be satisfied due to temporary server capacity constraints","status":503}`
	problemStatus = `{"type":"about:blank","title":"%s","status":%d}`
	problemHeader = `{"type":"about:blank","title":"Bad Request","status":400,"detail":"%s"}`
	missingDetail = "The header %s is missing." // its name is a token (see [ByHeader])
)

const (
	typeProblem = "application/problem+json"
	typeText    = "text/plain; charset=utf-8"
)

// answerDenied is the default of [WithDeniedHandler].
//
// It does what [gin.Context.Data] does, with the memory of the fields.
func answerDenied(c *gin.Context, r Result) {
	d := decidedOn(c)
	contentType, p := typeProblem, problem{}
	if prefersText(c.Request.Header) {
		text := "Too many requests.\n"
		if r.RetryAfter > 0 {
			text = fmt.Sprintf("Too many requests: try again in %d s.\n", seconds(r.RetryAfter))
		}
		contentType, p = typeText, problem{[]byte(text), strconv.Itoa(len(text))}
	} else {
		p = d.standings.problem()
	}
	h := c.Writer.Header()
	d.fields.text(h, "Content-Type", contentType)
	d.fields.text(h, "Content-Length", p.length)
	if _, err := c.Writer.Write(p.body); err != nil {
		_ = c.Error(err) // for the application's log; it returns what it was given
	}
}

// answerForbidden answers a request of an address that is not let in.
func answerForbidden(c *gin.Context) { answerStatus(c, http.StatusForbidden) }

// answerStatus answers with no more than a status.
func answerStatus(c *gin.Context, status int) {
	title := http.StatusText(status)
	answer(c, status, fmt.Sprintf(problemStatus, title, status), title)
}

// answer answers with a problem, or with text for who prefers it.
func answer(c *gin.Context, status int, problem, text string) {
	c.Header("Cache-Control", "no-store")
	if prefersText(c.Request.Header) {
		c.Data(status, typeText, []byte(text+"\n"))
	} else {
		c.Data(status, typeProblem, []byte(problem))
	}
}

// answerError is the default of [WithErrorHandler].
func answerError(c *gin.Context, err error) {
	_ = c.Error(err) // for the application's log; it returns what it was given
	c.Abort()
	var missing *missingHeader
	switch {
	case errors.As(err, &missing):
		detail := fmt.Sprintf(missingDetail, missing.name)
		answer(c, http.StatusBadRequest, fmt.Sprintf(problemHeader, detail), detail)
	case errors.Is(err, ErrUnknownClient):
		answerForbidden(c)
	case errors.Is(err, ErrUnavailable):
		c.Header("Retry-After", "1") // Redis is found within a second of its return
		answer(c, http.StatusServiceUnavailable, problemCapacity, http.StatusText(http.StatusServiceUnavailable))
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		answerStatus(c, http.StatusServiceUnavailable)
	default:
		answerStatus(c, http.StatusInternalServerError)
	}
}

// problem is a body of the type quota-exceeded.
type problem struct {
	body   []byte
	length string
}

// newProblem returns the problem of policies that refuse. Their names are tokens, which JSON takes as they are.
func newProblem(names ...string) problem {
	body := fmt.Appendf(nil, problemQuota, `"`+strings.Join(names, `","`)+`"`)
	return problem{body, strconv.Itoa(len(body))}
}

// longestAccept is how much of Accept is worth reading; who sends more gets JSON.
const longestAccept = 1024

// prefersText reports whether a request asks for plain text rather than JSON (RFC 9110, section 12.5.1). Of two
// that it likes as much it prefers the one that it names more closely, and else JSON.
func prefersText(h http.Header) bool {
	accept := strings.Join(h["Accept"], ",")
	if accept == "" || accept == "*/*" || len(accept) > longestAccept {
		return false
	}
	var text, problem, json preference
	for media := range splitUnquoted(accept, ',') {
		name, quality := "", 1000
		for part := range splitUnquoted(media, ';') {
			part = strings.ToLower(strings.TrimSpace(part))
			if name == "" {
				name = part
			} else if q, ok := strings.CutPrefix(part, "q="); ok {
				quality = thousandths(q)
			}
		}
		text.consider(name, "text/plain", quality)
		problem.consider(name, "application/problem+json", quality)
		json.consider(name, "application/json", quality)
	}
	if problem.closeness < exactly {
		problem = json // who likes the one takes the other
	}
	return text.above(problem)
}

// splitUnquoted returns the parts of a field's value between separators, but for those in quotes (RFC 9110, section
// 5.6.4).
func splitUnquoted(s string, separator byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		start, quoted := 0, false
		for i := 0; i < len(s); i++ {
			switch {
			case s[i] == '"':
				quoted = !quoted
			case s[i] == '\\' && quoted:
				i++
			case s[i] == separator && !quoted:
				if !yield(s[start:i]) {
					return
				}
				start = i + 1
			}
		}
		yield(s[start:])
	}
}

// preference is how much a request likes a media type, by the range that names it most closely.
type preference struct{ closeness, quality int }

const exactly = 3

func (p *preference) consider(name, media string, quality int) {
	kind, _, _ := strings.Cut(media, "/")
	closeness := 0
	switch name {
	case media:
		closeness = exactly
	case kind + "/*":
		closeness = 2
	case "*/*":
		closeness = 1
	}
	if closeness > p.closeness || closeness > 0 && closeness == p.closeness && quality > p.quality {
		*p = preference{closeness, quality}
	}
}

func (p preference) above(other preference) bool {
	if p.quality != other.quality {
		return p.quality > other.quality
	}
	return p.quality > 0 && p.closeness > other.closeness
}

// thousandths returns a quality (RFC 9110, section 12.4.2) in thousandths, and 0 for one that cannot be read.
func thousandths(q string) int {
	whole, part, _ := strings.Cut(q, ".")
	digits := whole + (part + "000")[:3]
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || len(whole) != 1 || len(part) > 3 || n > 1000 {
		return 0
	}
	return int(n)
}
