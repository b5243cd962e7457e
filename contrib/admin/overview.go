package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/internal/traits"
)

const (
	policiesShown  = 25  // on a page, each with a picture
	overridesShown = 100 // on a page of their own
	fewOverrides   = 5   // on the overview
	atOnce         = 8   // pictures that are read
)

// row is a policy in a list.
type row struct {
	Name     string
	Variants []ginlimit.PolicyInfo
	Picture  *picture
	Unknown  bool               // its picture could not be read
	All      *ginlimit.Override // for all clients, or nil
}

// release is a version of the application.
type release struct {
	Version   string
	Policies  int // that it serves
	Processes int // that serve one of these, at most
	Seen      time.Time
	last      string // policy that was counted
}

// list is a part of a longer list.
type list[T any] struct {
	Rows                 []T
	All                  int
	Page, Before, After  int // 0 is none
	Filter, Policy, Path string
}

// cut returns the page of a list that the request asks for.
func cut[T any](v *visit, rows []T, size int) list[T] {
	page, _ := strconv.Atoi(v.text("page"))
	pages := max(1, (len(rows)+size-1)/size)
	page = min(max(page, 1), pages)
	l := list[T]{All: len(rows), Page: page, Before: page - 1, After: page + 1}
	if page == pages {
		l.After = 0
	}
	l.Rows = rows[(page-1)*size : min(page*size, len(rows))]
	return l
}

// nameHas reports whether a policy's name has the text of a filter, in upper or lower case.
func nameHas(name, filter string) bool {
	return strings.Contains(strings.ToLower(name), strings.ToLower(filter))
}

// rowsOf returns policies by name.
func rowsOf(all []ginlimit.PolicyInfo, filter string) (rows []row) {
	for _, p := range all {
		if !nameHas(p.Name, filter) {
			continue
		}
		if n := len(rows); n > 0 && rows[n-1].Name == p.Name {
			rows[n-1].Variants = append(rows[n-1].Variants, p)
			continue
		}
		rows = append(rows, row{Name: p.Name, Variants: []ginlimit.PolicyInfo{p}})
	}
	return rows
}

// listOf returns the policies that the request asks for, with pictures and overrides for all clients.
func (h *handler) listOf(v *visit, all []ginlimit.PolicyInfo, overrides []operate.Listed) list[row] {
	filter := v.text("name")
	l := cut(v, rowsOf(all, filter), policiesShown)
	l.Filter, l.Path = filter, "policies"
	forAll := slices.DeleteFunc(slices.Clone(overrides), func(o operate.Listed) bool { return o.Client != "" })
	for i := range l.Rows {
		if of, err := v.ForAll(forAll, l.Rows[i].Name); !v.failed("An override cannot be read.", err) {
			l.Rows[i].All = of
		}
	}
	var wait sync.WaitGroup
	var fails sync.Once // the goroutines share the notices
	turns := make(chan struct{}, atOnce)
	for i := range l.Rows {
		turns <- struct{}{}
		wait.Go(func() {
			defer func() { <-turns }()
			var err error
			if l.Rows[i].Picture, err = h.pictureOf(v, l.Rows[i].Name); err != nil {
				l.Rows[i].Unknown = true
				fails.Do(func() { v.failed("The decisions of the last ten minutes cannot be read.", err) })
			}
		})
	}
	wait.Wait()
	return l
}

// versions returns the versions of the application that serve policies, which are by name, the latest first.
func versions(all []ginlimit.PolicyInfo) (found []release) {
	for _, p := range all {
		i := slices.IndexFunc(found, func(r release) bool { return r.Version == p.Version })
		if i < 0 {
			i, found = len(found), append(found, release{Version: p.Version})
		}
		r := &found[i]
		if r.Policies == 0 || r.last != p.Name {
			r.Policies, r.last = r.Policies+1, p.Name
		}
		r.Processes = max(r.Processes, p.Processes)
		if p.Seen.After(r.Seen) {
			r.Seen = p.Seen
		}
	}
	slices.SortFunc(found, func(a, b release) int { return b.Seen.Compare(a.Seen) })
	return found
}

// rollouts returns how many policies, which are by name, several versions of the application serve: an application
// beside it has others.
func rollouts(all []ginlimit.PolicyInfo) (n int) {
	for _, of := range rowsOf(all, "") {
		isOther := func(p ginlimit.PolicyInfo) bool { return p.Version != of.Variants[0].Version }
		if slices.ContainsFunc(of.Variants, isOther) {
			n++
		}
	}
	return n
}

// known is what pages of all policies know.
type known struct {
	Policies  list[row]
	Nothing   string // why there are no policies
	Overrides list[ginlimit.Override]
	Unknown   struct{ Policies, Overrides bool }
	all       []ginlimit.PolicyInfo
}

// known reads policies and overrides.
func (h *handler) known(v *visit) (k known) {
	var err error
	k.all, err = v.Policies(v.ctx)
	k.Unknown.Policies = v.failed("The policies cannot be read.", err)
	overrides, err := v.Overrides(v.ctx)
	if err == nil {
		k.Overrides, err = v.soonest(overrides, fewOverrides)
	}
	k.Unknown.Overrides = v.failed("The overrides cannot be read.", err)
	if k.Unknown.Policies && k.Unknown.Overrides {
		v.status = http.StatusServiceUnavailable
	}
	k.Policies = h.listOf(v, k.all, overrides)
	if len(k.all) > 0 || k.Unknown.Policies {
		return k
	}
	k.Nothing = sentence(v.Nothing())
	if others, err := h.limiter.Policies(v.ctx); err == nil && len(others) > 0 {
		k.Nothing += " The application's limiter has another prefix: give it to the page by admin.WithPrefix."
	}
	return k
}

// overview is the first page.
func (h *handler) overview(v *visit) error {
	body := struct {
		known
		Versions []release
		Rollouts int      // policies that several versions serve
		Several  []string // policies of which processes have different limits or options
		Stats    ginlimit.Stats
		Waiting  int // callers, in this process
	}{known: h.known(v), Stats: h.limiter.Stats()}
	for _, n := range body.Stats.Waiting {
		body.Waiting += n
	}
	body.Versions, body.Rollouts, body.Several = versions(body.all), rollouts(body.all), operate.Differing(body.all)
	return v.show("overview", "Limits", body)
}

// policies is the list of policies, by name.
func (h *handler) policies(v *visit) error { return v.show("policies", "Policies", h.known(v)) }

// soonest reads the page of overrides that the request asks for: by their end.
func (v *visit) soonest(all []operate.Listed, size int) (list[ginlimit.Override], error) {
	slices.SortFunc(all, func(a, b operate.Listed) int { return cmp.Or(a.Until.Compare(b.Until), a.Compare(b)) })
	l := cut(v, all, size)
	rows, err := v.Read(l.Rows...)
	return list[ginlimit.Override]{Rows: rows, All: l.All, Page: l.Page, Before: l.Before, After: l.After}, err
}

// wanted returns the overrides that the request asks for: of a policy, or of those whose names have a text.
func (v *visit) wanted() ([]operate.Listed, error) {
	all, err := v.OfPolicy(v.ctx, v.text("policy"))
	filter := v.text("name")
	return slices.DeleteFunc(all, func(o operate.Listed) bool { return !nameHas(o.Policy, filter) }), err
}

// overrides is the list of overrides in force.
func (h *handler) overrides(v *visit) error {
	var body struct {
		list[ginlimit.Override]
		Unknown bool
	}
	all, err := v.wanted()
	if err == nil {
		body.list, err = v.soonest(all, overridesShown)
	}
	if body.Unknown = v.failed("The overrides cannot be read.", err); body.Unknown {
		v.status = http.StatusServiceUnavailable
	}
	body.Policy, body.Filter, body.Path = v.text("policy"), v.text("name"), "overrides"
	return v.show("overrides", "Overrides", body)
}

// health is what the doctor finds.
func (h *handler) health(v *visit) error {
	doctor, err := operate.New(h.rdb, operate.Config{Prefix: h.prefix, Timeout: h.patient})
	if err != nil {
		return err
	}
	defer func() { go doctor.Close() }() // which waits for what Redis does not answer
	all := append(h.loss(), doctor.Examine(v.ctx)...)
	for i := range all {
		if err := all[i].Err; err != nil {
			all[i].Found = operate.Reason(err)
		}
	}
	return v.show("health", "Health", all)
}

// lossShown is how long a loss of Redis' data is shown.
const lossShown = 24 * time.Hour

// loss says that this process has noticed that Redis had lost its data, or nothing.
func (h *handler) loss() []operate.Finding {
	of := h.limiter.Traits(traits.Key{}).Loss()
	if of.At.IsZero() || time.Since(of.At) > lossShown {
		return nil
	}
	return []operate.Finding{{Check: "data", State: operate.Warning,
		Found: fmt.Sprintf("Redis has lost its data with %s, as this process noticed at %s; blocks and bans may be gone, too",
			operate.Plural(of.Overrides, "override", "overrides"), operate.TimeText(of.At)),
		Advice: "set the overrides again by your copy of them, and block again"}}
}
