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
	headerProblem = `{"type":"about:blank","title":"Bad Request","status":400,` +
		`"detail":"The header %s is missing."}`

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

// StatusProblem returns a body that only repeats a status and its title.
func StatusProblem(title string, status int) string { return fmt.Sprintf(statusProblem, title, status) }

// HeaderProblem returns the body of 400 for a missing header, whose name must be a token (see
// [IsToken]).
func HeaderProblem(name string) string { return fmt.Sprintf(headerProblem, name) }
