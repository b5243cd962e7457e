package main

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// outcome is what clients saw of a library in a fault.
type outcome struct {
	took     times // of each request since the fault began
	free     times // of requests that meet no limiter, at the same time
	allowed  int
	admitted int
	refused  int             // below the limit of the client
	unasked  map[unasked]int // answers that no client should see
	back     time.Duration   // from the end of the fault until Redis counts
}

// times are sorted.
type times []time.Duration

// tooks returns how long the requests took that were sent since then.
func tooks(found []seen, since time.Duration) (all times) {
	for _, s := range found {
		if s.start >= since {
			all = append(all, s.end-s.start)
		}
	}
	slices.Sort(all)
	return all
}

func (t times) percentile(p int) time.Duration {
	if len(t) == 0 {
		return 0
	}
	return t[(len(t)-1)*p/100]
}

// unasked is an answer that tells clients of the fault.
type unasked struct {
	status int
	leaks  bool
}

// judge counts what the limit allows of the requests, and what became of them. A request was refused wrongly if the
// limit had room for it, even if all requests that were admitted while it waited had come first.
func judge(all []client, found []seen, faultBegins time.Duration) outcome {
	o := outcome{took: tooks(found, faultBegins), unasked: map[unasked]int{}}
	for i := range all {
		asked := slices.DeleteFunc(slices.Clone(found), func(s seen) bool { return s.client != i })
		admitted := slices.DeleteFunc(slices.Clone(asked), func(s seen) bool { return s.status != http.StatusOK })
		o.allowed += min(len(asked), requestsPerHour)
		o.admitted += len(admitted)
		for _, s := range asked {
			if s.status == http.StatusOK {
				continue
			}
			before := 0
			for _, a := range admitted {
				if a.start < s.end {
					before++
				}
			}
			wrong := before < requestsPerHour
			if wrong {
				o.refused++
			}
			if wrong || s.status != http.StatusTooManyRequests {
				o.unasked[unasked{s.status, s.leaks}]++
			}
		}
	}
	return o
}

// statuses are those that clients should not see, the most frequent first. A star marks bodies with an error's text.
func statuses(rounds []outcome) string {
	sum := map[unasked]int{}
	for _, o := range rounds {
		for a, n := range o.unasked {
			sum[a] += n
		}
	}
	var texts []string
	for _, a := range slices.SortedFunc(maps.Keys(sum), func(a, b unasked) int {
		return cmp.Or(cmp.Compare(sum[b], sum[a]), cmp.Compare(a.status, b.status))
	}) {
		text := "none"
		if a.status > 0 {
			text = strconv.Itoa(a.status)
		}
		if a.leaks {
			text += "\\*"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
