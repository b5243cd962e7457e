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

// kind is what is counted of clients.
type kind uint8

const (
	denials  kind = iota
	charged       // tokens, by decisions, and by settlements that took more
	returned      // tokens, by settlements that took less: a sketch takes nothing away
	kinds
)

// letters begin the lines of clients in Redis, by kind.
const letters = "dcr"

// summary is what is known of a policy in some time, by one process or by several.
type summary struct {
	of       [kinds]ranking
	outcomes outcomes
}

// ranking has the clients with the most of one kind. What a [sketch] promises holds for it too, with rest as the
// cell of every client.
type ranking struct {
	clients []client
	rest    int64 // bounds what each client has that is not listed
}

// client is a counter, with the key as Redis has it: "=" and the key, or "#" and its hash.
type client struct {
	text       string
	count, err int64
}

// outcomes counts decisions by [ginlimit.Outcome].
type outcomes [ginlimit.OutcomeFailed + 1]int64

// merge returns the summary of both.
func (s summary) merge(o summary) summary {
	for i := range s.of {
		s.of[i] = s.of[i].merge(o.of[i])
	}
	for i := range s.outcomes {
		s.outcomes[i] += o.outcomes[i]
	}
	return s
}

// merge returns the ranking of both. A client that one of them does not list may have had as many there as its rest
// allows. It keeps the clients with the highest counts.
//
// The promises stay true. Of the counters of a that are kept, and of those that others replace, each is at least
// a.rest. So the sum of the kept counts, with a.rest for each client that a does not list, is at most the sum of
// a's counts, and the same holds for b.
func (s ranking) merge(o ranking) ranking {
	index := make(map[string]int, len(s.clients))
	merged := ranking{clients: make([]client, len(s.clients), len(s.clients)+len(o.clients)), rest: s.rest + o.rest}
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
	slices.SortFunc(merged.clients, func(a, b client) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.err, b.err), cmp.Compare(a.text, b.text))
	})
	if len(merged.clients) > counters {
		merged.rest = max(merged.rest, merged.clients[counters].count)
		merged.clients = merged.clients[:counters]
	}
	return merged
}

// isEmpty reports whether nothing was counted.
func (s summary) isEmpty() bool {
	for _, r := range s.of {
		if len(r.clients) > 0 {
			return false
		}
	}
	return s.outcomes == outcomes{}
}

// format is the first word of a summary in Redis.
const format = "1"

// text returns the summary as it stands in Redis: a line with the format, the outcomes and the rests, and a line
// with kind, count, error and text of each client.
func (s summary) text() string {
	var b strings.Builder
	b.WriteString(format)
	for _, n := range s.outcomes {
		fmt.Fprint(&b, " ", n)
	}
	for _, r := range s.of {
		fmt.Fprint(&b, " ", r.rest)
	}
	b.WriteByte('\n')
	for i, r := range s.of {
		for _, c := range r.clients {
			fmt.Fprintf(&b, "%c %d %d %s\n", letters[i], c.count, c.err, c.text)
		}
	}
	return b.String()
}

var errFormat = errors.New("its text is no summary that this version can read")

// parseSummary reads the text of a summary.
func parseSummary(text string) (s summary, err error) {
	head, lines, _ := strings.Cut(text, "\n")
	words := strings.Split(head, " ")
	if len(words) != 1+len(s.outcomes)+len(s.of) || words[0] != format {
		return s, errFormat
	}
	number := func(word string) (n int64) {
		n, fault := strconv.ParseInt(word, 10, 64)
		if fault != nil || n < 0 {
			err = errFormat
		}
		return n
	}
	for i := range s.outcomes {
		s.outcomes[i] = number(words[1+i])
	}
	for i := range s.of {
		s.of[i].rest = number(words[1+len(s.outcomes)+i])
	}
	for line := range strings.Lines(lines) {
		words := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(words) != 4 || len(words[0]) != 1 || words[3] == "" || !strings.Contains("=#", words[3][:1]) {
			return s, errFormat
		}
		i := strings.Index(letters, words[0])
		if i < 0 {
			return s, errFormat
		}
		s.of[i].clients = append(s.of[i].clients, client{words[3], number(words[1]), number(words[2])})
	}
	return s, err
}
