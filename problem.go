package ginlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
)

// The bodies of the default answers (RFC 9457). quota-exceeded and temporary-reduced-capacity are problem types of
// draft-ietf-httpapi-ratelimit-headers-11, section 5; the others only repeat their status.
const (
	problemQuota = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,%s"violated-policies":[%s]}`
	problemCapacity = `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
		`"title":"Request cannot be satisfied due to temporary server capacity constraints","status":503}`
	problemStatus = `{"type":"about:blank","title":"%s","status":%d}`
	problemHeader = `{"type":"about:blank","title":"Bad Request","status":400,"detail":"%s"}`
	missingDetail = "The header %s is missing." // its name is a token (see [ByHeader])

	prohibitedDetail = "Requests are not allowed at all, so retrying will not help."
	costDetail       = "This request costs %d and the limit never allows more than %d at once, so retrying will not help."
)

const (
	typeProblem = "application/problem+json"
	typeText    = "text/plain; charset=utf-8"
)

// answerDenied is the default of [WithDeniedHandler].
//
// It is [gin.Context.Data] with the memory for the header fields in the request's state.
func answerDenied(c *gin.Context, r Result) {
	s := stateOf(c)
	contentType, body, detail := typeProblem, []byte(nil), neverDetail(r, s.cost, s.by.floorOf(r))
	switch {
	case !prefersText(c.Request.Header):
		body = s.problem(detail)
	case detail != "":
		contentType, body = typeText, []byte("Too many requests. "+detail+"\n")
	default:
		contentType, body = typeText, fmt.Appendf(nil, "Too many requests: try again in %d s.\n", seconds(r.RetryAfter))
	}
	h := c.Writer.Header()
	s.fields.text(h, "Content-Type", contentType)
	s.fields.number(h, "Content-Length", int64(len(body)))
	if _, err := c.Writer.Write(body); err != nil {
		_ = c.Error(err) // for the application's log; it returns what it was given
	}
}

// neverDetail explains a refusal that no retry avoids. It is "" for any other refusal.
func neverDetail(r Result, cost, floor int) string {
	switch {
	case r.RetryAfter >= 0:
		return ""
	case r.Limit.Rate == 0 && r.Limit.InFlight == 0:
		return prohibitedDetail
	default:
		return fmt.Sprintf(costDetail, cost, max(0, r.Limit.burst()-floor))
	}
}

// floorOf returns how many tokens of a limit the policy leaves to others.
func (p *Policy) floorOf(r Result) int {
	if r.Name == p.name {
		return p.floor
	}
	return 0
}

// answerStatus answers with a problem that only repeats its status.
func answerStatus(c *gin.Context, status int) {
	title := http.StatusText(status)
	answer(c, status, fmt.Sprintf(problemStatus, title, status), title)
}

// answer answers with a problem, or with text if the request prefers that.
func answer(c *gin.Context, status int, problem, text string) {
	c.Header("Cache-Control", "no-store")
	if prefersText(c.Request.Header) {
		c.Data(status, typeText, []byte(text+"\n"))
	} else {
		c.Data(status, typeProblem, []byte(problem))
	}
}

// ErrorStatus returns the status with which the default of [WithErrorHandler] answers an error.
//
// It is 400 for [ErrBadRequest], 403 for [ErrUnknownClient], 503 for [ErrUnavailable] or if a context has ended, and 500
// otherwise. Of nil it is 200.
func ErrorStatus(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, ErrBadRequest):
		return http.StatusBadRequest
	case errors.Is(err, ErrUnknownClient):
		return http.StatusForbidden
	case errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// answerError is the default of [WithErrorHandler].
func answerError(c *gin.Context, err error) {
	_ = c.Error(err) // for the application's log; it returns what it was given
	c.Abort()
	var missing *missingHeader
	status := ErrorStatus(err)
	switch {
	case errors.As(err, &missing):
		detail := fmt.Sprintf(missingDetail, missing.name)
		answer(c, status, fmt.Sprintf(problemHeader, detail), detail)
	case status == http.StatusServiceUnavailable && errors.Is(err, ErrUnavailable):
		c.Header("Retry-After", "1") // Redis decides again within a second of its return
		answer(c, status, problemCapacity, http.StatusText(status))
	default:
		answerStatus(c, status)
	}
}

// newProblem returns a body of the type quota-exceeded for limits that refuse, by their names, with the detail if it is
// not "". Neither needs escapes in JSON: names are tokens, and a detail is one of the sentences above.
func newProblem(detail string, names ...string) []byte {
	if detail != "" {
		detail = `"detail":"` + detail + `",`
	}
	violated := ""
	if len(names) > 0 {
		violated = `"` + strings.Join(names, `","`) + `"`
	}
	return fmt.Appendf(nil, problemQuota, detail, violated)
}

// maxAccept is the longest Accept that is read; a longer one gets JSON.
const maxAccept = 1024

// prefersText reports whether a request prefers plain text to JSON (RFC 9110, section 12.5.1). If the quality is equal,
// the more specific range wins, and else JSON. Separators in quoted strings are not told from others.
func prefersText(h http.Header) bool {
	accept := strings.Join(h["Accept"], ",")
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
