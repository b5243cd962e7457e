package transport

import (
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestHugeFieldsCostLittle: a receiver of webhooks, which customers name, may send as many bytes of a field as net/http
// lets through.
func TestHugeFieldsCostLittle(t *testing.T) { // not parallel: it counts bytes
	const size = 1 << 20
	long := func(text string) []string { return []string{strings.Repeat(text, size/len(text))} }
	lines := func(text string) []string {
		all := make([]string, size/(len(text)+1))
		for i := range all {
			all[i] = text
		}
		return all
	}
	for name, h := range map[string]http.Header{
		"items":                  {"Ratelimit": long(`"a";r=1,`)},
		"items of policies":      {"Ratelimit": {`"a";r=1`}, "Ratelimit-Policy": long(`"a";q=1,`)},
		"both":                   {"Ratelimit": long(`"a";r=1,`), "Ratelimit-Policy": long(`"a";q=1,`)},
		"commas":                 {"Ratelimit": long(`,`), "Ratelimit-Policy": long(`,`)},
		"parameters":             {"Ratelimit": long(`;a=1`), "Ratelimit-Policy": long(`;w=1`)},
		"a String without end":   {"Ratelimit": long(`"`), "Ratelimit-Policy": long(`"\`)},
		"lines":                  {"Ratelimit": lines(`"a";r=1`), "Ratelimit-Policy": lines(`"a";q=1`)},
		"empty lines":            {"Ratelimit": lines(``), "Ratelimit-Policy": lines(``)},
		"a number":               {"Ratelimit": {`"a";r=` + long(`1`)[0]}, "Ratelimit-Policy": {`"a";w=` + long(`1`)[0]}},
		"a number that is left":  {"X-Ratelimit-Remaining": long(`1`), "X-Ratelimit-Reset": long(`1`)},
		"a text that is left":    {"X-Ratelimit-Remaining": long(`a`), "X-Ratelimit-Reset": long(`a`)},
		"a time":                 {"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": long(`1h`)},
		"a number of seconds":    {"Retry-After": long(`1`)},
		"a date":                 {"Retry-After": {"Tue, 01 Jan 2030 00:00:00 GMT" + long(` `)[0] + `a`}},
		"another text":           {"Retry-After": long(`"`)},
		"the partner's own time": {"Retry-After": {"1"}, "Date": long(`Tue, `)},
		"lines of times":         {"Retry-After": lines("1"), "Date": lines("1")},
	} {
		for _, status := range []int{200, 403, 429, 503} {
			own := transport{maxStop: time.Hour}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, stops := own.stopOf(&http.Response{StatusCode: status, Header: h}); !stops {
				reportOf(h, false).remaining(time.Minute)
			}
			runtime.ReadMemStats(&after)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<10), "%s, %d", name, status)
		}
	}
}

// TestTheFirstItemsAreRead, and none that is cut off: a part of r=100 is another number.
func TestTheFirstItemsAreRead(t *testing.T) {
	t.Parallel()
	item := func(r int) string { return `"a";r=` + strconv.Itoa(r) }
	filled := func(size int, text string) string { return `"` + strings.Repeat("n", size-len(text)-2) + `"` + text }
	many := func(n int) (all []string) {
		for i := range n {
			all = append(all, item(1000-i))
		}
		return all
	}
	for name, row := range map[string]struct {
		lines []string
		want  []int
	}{
		"in one line":             {[]string{item(1) + ", " + item(2)}, []int{1, 2}},
		"in two lines":            {[]string{item(1), item(2)}, []int{1, 2}},
		"after members of spaces": {[]string{" , \t,," + item(1)}, []int{1}},
		"an empty parameter":      {[]string{`"a";;r=1; `}, []int{1}},
		"as many as there may be": {many(maxItems), count(1000, maxItems)},
		"in one line, one more":   {[]string{strings.Join(many(maxItems+1), ",")}, count(1000, maxItems)},
		"of the whole length":     {[]string{filled(maxRead, ";r=100")}, []int{100}},
		"a byte longer":           {[]string{filled(maxRead+1, ";r=100")}, nil},
		"the next one is cut":     {[]string{filled(maxRead-10, ";r=7") + `,"a";r=1000`}, []int{7}},
		"a line after":            {[]string{filled(maxRead-8, ";r=7"), item(1)}, []int{7, 1}},
		"a line that is cut":      {[]string{filled(maxRead-7, ";r=7"), item(1)}, []int{7}},
		"a line that is too late": {[]string{filled(maxRead, ";r=7"), item(1)}, []int{7}},
	} {
		var got []int
		for _, s := range reportOf(http.Header{"Ratelimit": row.lines}, false).listed {
			got = append(got, s.remaining)
		}
		assert.Equal(t, row.want, got, name)
	}
}

// count returns n numbers down from first.
func count(first, n int) (all []int) {
	for i := range n {
		all = append(all, first-i)
	}
	return all
}
