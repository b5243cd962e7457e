package web_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// What the fields of the draft say, read back by a parser of RFC 9651.

// item is what a field says of one limit; a parameter that is not there is -1.
type item struct {
	name       string
	q, w, r, t int64
}

// itemsOf reads a List of a field whose Items have no other parameters than these.
func itemsOf(t testing.TB, h http.Header, field string, parameters ...string) []item {
	t.Helper()
	if h.Values(field) == nil {
		return nil
	}
	list, err := httpsfv.UnmarshalList(h.Values(field))
	require.NoError(t, err, "%s: %q", field, h.Values(field))
	var items []item
	for _, member := range list {
		read, ok := member.(httpsfv.Item)
		require.True(t, ok)
		name, ok := read.Value.(string)
		require.True(t, ok, "the name is a String")
		_, err := httpsfv.UnmarshalItem([]string{name})
		require.NoError(t, err, "and could be a Token: %q", name)
		one := item{name, -1, -1, -1, -1}
		for _, parameter := range read.Params.Names() {
			require.Contains(t, parameters, parameter)
			value, _ := read.Params.Get(parameter)
			n, ok := value.(int64)
			require.True(t, ok, "%s is an Integer", parameter)
			*map[string]*int64{"q": &one.q, "w": &one.w, "r": &one.r, "t": &one.t}[parameter] = n
		}
		items = append(items, one)
	}
	return items
}

func policiesOf(t testing.TB, rec *httptest.ResponseRecorder) []item {
	t.Helper()
	return itemsOf(t, rec.Header(), "RateLimit-Policy", "q", "w")
}

func limitsOf(t testing.TB, rec *httptest.ResponseRecorder) []item {
	t.Helper()
	return itemsOf(t, rec.Header(), "RateLimit", "r", "t")
}

func violated(t testing.TB, rec *httptest.ResponseRecorder) []string {
	t.Helper()
	var problem struct {
		Names []string `json:"violated-policies"`
	}
	require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &problem), rec.Body)
	return problem.Names
}

var draft = ginlimit.WithHeaders(ginlimit.RateLimitDraft)
