package top

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ginlimit/ginlimit"
)

// summary is what is known of the denials of a policy in some time, by one process or by several. What a
// [sketch] promises holds for it too, with rest as the cell of every client.
type summary struct {
	clients  []client
	rest     int64 // bounds the denials of each client that is not listed
	outcomes outcomes
}

// client is a counter, with the key as Redis has it: "=" and the key, or "#" and its hash.
type client struct {
	text       string
	count, err int64
}

// outcomes counts decisions by [ginlimit.Outcome].
type outcomes [ginlimit.OutcomeFailed + 1]int64

// merge returns the summary of both. A client that one of them does not list may have had as many denials there
// as its rest allows. It keeps the clients with the highest counts.
//
// The promises stay true. Of the counters of a that are kept, and of those that others replace, each is at least
// a.rest. So the sum of the kept counts, with a.rest for each client that a does not list, is at most the sum of
// a's counts, and the same holds for b.
func (s summary) merge(o summary) summary {
	index := make(map[string]int, len(s.clients))
	merged := summary{clients: make([]client, len(s.clients), len(s.clients)+len(o.clients)), rest: s.rest + o.rest}
	for i, c := range s.clients {
		index[c.text] = i
		merged.clients[i] = client{c.text, c.count + o.rest, c.err + o.rest}
	}
	for _, c := range o.clients {
		if i, ok := index[c.text]; ok {
			of := &merged.clients[i]
			of.count, of.err = of.count-o.rest+c.count, of.err-o.rest+c.err
		} else {
			merged.clients = append(merged.clients, client{c.text, c.count + s.rest, c.err + s.rest})
		}
	}
	for i := range merged.outcomes {
		merged.outcomes[i] = s.outcomes[i] + o.outcomes[i]
	}
	slices.SortFunc(merged.clients, func(a, b client) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.err, b.err), cmp.Compare(a.text, b.text))
	})
	if len(merged.clients) > counters {
		merged.rest = max(merged.rest, merged.clients[counters].count)
		merged.clients = merged.clients[:counters]
	}
	return merged
}

func (s summary) isEmpty() bool { return s.outcomes == outcomes{} }

// format is the first word of a summary in Redis.
const format = "1"

// text returns the summary as it stands in Redis: a line with the format, the rest and the outcomes, and a line
// with count, error and text of each client.
func (s summary) text() string {
	var b strings.Builder
	fmt.Fprint(&b, format, " ", s.rest)
	for _, n := range s.outcomes {
		fmt.Fprint(&b, " ", n)
	}
	b.WriteByte('\n')
	for _, c := range s.clients {
		fmt.Fprintf(&b, "%d %d %s\n", c.count, c.err, c.text)
	}
	return b.String()
}

var errFormat = errors.New("its text is no summary that this version can read")

// parseSummary reads the text of a summary.
func parseSummary(text string) (s summary, err error) {
	head, lines, _ := strings.Cut(text, "\n")
	words := strings.Split(head, " ")
	if len(words) != 2+len(s.outcomes) || words[0] != format {
		return s, errFormat
	}
	number := func(word string) (n int64) {
		n, fault := strconv.ParseInt(word, 10, 64)
		if fault != nil || n < 0 {
			err = errFormat
		}
		return n
	}
	s.rest = number(words[1])
	for i := range s.outcomes {
		s.outcomes[i] = number(words[2+i])
	}
	for line := range strings.Lines(lines) {
		words := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(words) != 3 || words[2] == "" || !strings.Contains("=#", words[2][:1]) {
			return s, errFormat
		}
		s.clients = append(s.clients, client{words[2], number(words[0]), number(words[1])})
	}
	return s, err
}
