package httpfields

import (
	"fmt"
	"strings"
)

// The bodies of the default answers (RFC 9457). quota-exceeded and temporary-reduced-capacity are
// problem types of draft-ietf-httpapi-ratelimit-headers-11, section 5; the others only repeat their
// status.
const (
	quotaProblem = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded",` +
		`"status":429,%s"violated-policies":[%s]}`
	statusProblem = `{"type":"about:blank","title":"%s","status":%d}`
	headerProblem = `{"type":"about:blank","title":"Bad Request","status":400,"detail":"%s"}`

	// CapacityProblem is the body of 503 without Redis.
	CapacityProblem = `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
		`"title":"Request cannot be satisfied due to temporary server capacity constraints","status":503}`
)

// ProhibitedDetail says why no wait helps if a limit is 0.
const ProhibitedDetail = "Requests are not allowed at all, so retrying will not help."

// ShareDetail says that a tenant has its share of a limit.
const ShareDetail = "This limit is shared, and your share of it is used up."

// CostDetail says why no wait helps if a request costs more than a limit ever allows.
func CostDetail(cost, most int) string {
	return fmt.Sprintf("This request costs %d and the limit never allows more than %d at once, "+
		"so retrying will not help.", cost, most)
}

// QuotaProblem returns the body of a denial by limits, by their names, with the detail if it is not
// "".
//
// Neither needs escapes in JSON: a name is what [Name] returns, and a detail is [ProhibitedDetail],
// [ShareDetail] or a [CostDetail].
func QuotaProblem(detail string, names ...string) []byte {
	if detail != "" {
		detail = `"detail":"` + detail + `",`
	}
	violated := ""
	if len(names) > 0 {
		violated = `"` + strings.Join(names, `","`) + `"`
	}
	return fmt.Appendf(nil, quotaProblem, detail, violated)
}

// QuotaText returns the body of a denial as text: the detail, and after how many seconds to retry if
// that helps.
func QuotaText(detail string, retryAfter int64) []byte {
	switch detail {
	case "":
		return fmt.Appendf(nil, "Too many requests: try again in %d s.\n", retryAfter)
	case ShareDetail:
		return fmt.Appendf(nil, "Too many requests: try again in %d s. %s\n", retryAfter, detail)
	}
	return []byte("Too many requests. " + detail + "\n")
}

// StatusProblem returns a body that only repeats a status and its title.
func StatusProblem(title string, status int) string { return fmt.Sprintf(statusProblem, title, status) }

// MissingHeader says that a request lacks a header. The name must be a token (see [IsToken]).
func MissingHeader(name string) string { return fmt.Sprintf("The header %s is missing.", name) }

// HeaderProblem returns the body of 400 with the detail, a [MissingHeader].
func HeaderProblem(detail string) string { return fmt.Sprintf(headerProblem, detail) }
