package httpfields_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ginlimit/ginlimit/internal/httpfields"
)

func TestProblems(t *testing.T) {
	t.Parallel()
	const (
		quota = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
			`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,`
		costs = "This request costs 12 and the limit never allows more than 10 at once, so retrying will not help."
	)
	for want, got := range map[string]string{
		quota + `"violated-policies":[]}`:        string(httpfields.QuotaProblem("")),
		quota + `"violated-policies":["a"]}`:     string(httpfields.QuotaProblem("", "a")),
		quota + `"violated-policies":["a","b"]}`: string(httpfields.QuotaProblem("", "a", "b")),
		quota + `"detail":"` + costs + `","violated-policies":["a"]}`: string(
			httpfields.QuotaProblem(httpfields.CostDetail(12, 10), "a")),
		quota + `"detail":"This limit is shared, and your share of it is used up.","violated-policies":["a"]}`: string(
			httpfields.QuotaProblem(httpfields.ShareDetail, "a")),
		`{"type":"about:blank","title":"Forbidden","status":403}`: httpfields.StatusProblem("Forbidden",
			http.StatusForbidden),
		`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
			`"title":"Request cannot be satisfied due to temporary server capacity constraints",` +
			`"status":503}`: httpfields.CapacityProblem,
		`{"type":"about:blank","title":"Bad Request","status":400,` +
			`"detail":"The header X-A is missing."}`: httpfields.HeaderProblem("X-A"),
	} {
		assert.Equal(t, want, got)
		assert.True(t, json.Valid([]byte(got)), got)
	}
}
