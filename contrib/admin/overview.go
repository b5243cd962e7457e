package admin

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
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
}

// release is a version of the application.
type release struct {
	Version   string
	Processes int
	Seen      time.Time
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

// rowsOf returns policies by name.
func rowsOf(all []ginlimit.PolicyInfo, filter string) (rows []row) {
	for _, p := range all {
		if !strings.Contains(strings.ToLower(p.Name), strings.ToLower(filter)) {
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

// listOf returns the policies that the request asks for, with pictures.
func (h *handler) listOf(v *visit, all []ginlimit.PolicyInfo) list[row] {
	filter := v.text("name")
	l := cut(v, rowsOf(all, filter), policiesShown)
	l.Filter, l.Path = filter, "policies"
	var wait sync.WaitGroup
	var fails sync.Once
	turns := make(chan struct{}, atOnce)
	for i := range l.Rows {
		turns <- struct{}{}
		wait.Go(func() {
			defer func() { <-turns }()
			var err error
			if l.Rows[i].Picture, err = h.pictureOf(v, l.Rows[i].Name); err != nil {
				fails.Do(func() { v.failed("The decisions of the last ten minutes cannot be read.", err) })
			}
		})
	}
	wait.Wait()
	return l
}

// versions returns the versions of the application that serve policies, the latest first.
func versions(all []ginlimit.PolicyInfo) (found []release) {
	for _, p := range all {
		i := slices.IndexFunc(found, func(r release) bool { return r.Version == p.Version })
		if i < 0 {
			i, found = len(found), append(found, release{Version: p.Version})
		}
		found[i].Processes = max(found[i].Processes, p.Processes)
		if p.Seen.After(found[i].Seen) {
			found[i].Seen = p.Seen
		}
	}
	slices.SortFunc(found, func(a, b release) int { return b.Seen.Compare(a.Seen) })
	return found
}

// overview is the first page.
func (h *handler) overview(v *visit) error {
	body := struct {
		Policies  list[row]
		Nothing   string
		Versions  []release
		Several   []string // policies of which processes serve several variants
		Overrides list[ginlimit.Override]
		Stats     ginlimit.Stats
		Waiting   int // callers, in this process
	}{Stats: h.limiter.Stats()}
	for _, n := range body.Stats.Waiting {
		body.Waiting += n
	}
	all := h.known(v, &body.Nothing)
	body.Policies, body.Versions = h.listOf(v, all), versions(all)
	for _, r := range rowsOf(all, "") {
		if len(r.Variants) > 1 {
			body.Several = append(body.Several, r.Name)
		}
	}
	overrides, err := v.Overrides(v.ctx)
	v.failed("The overrides cannot be read.", err)
	body.Overrides = cut(v, soonest(overrides), fewOverrides)
	return v.show("overview", "Limits", body)
}

// known returns the policies that are served, and why there are none.
func (h *handler) known(v *visit, nothing *string) []ginlimit.PolicyInfo {
	all, err := v.Policies(v.ctx)
	v.failed("The policies cannot be read.", err)
	if err != nil || len(all) > 0 {
		return all
	}
	*nothing = sentence(v.Nothing())
	if others, err := h.limiter.Policies(v.ctx); err == nil && len(others) > 0 {
		*nothing += " The application's limiter has another prefix: give it to the page by admin.WithPrefix."
	}
	return nil
}

// policies is the list of policies, by name.
func (h *handler) policies(v *visit) error {
	body := struct {
		Policies list[row]
		Nothing  string
	}{}
	body.Policies = h.listOf(v, h.known(v, &body.Nothing))
	return v.show("policies", "Policies", body)
}

// soonest returns overrides by their end.
func soonest(all []ginlimit.Override) []ginlimit.Override {
	slices.SortStableFunc(all, func(a, b ginlimit.Override) int { return a.Until.Compare(b.Until) })
	return all
}

// overrides is the list of overrides in force.
func (h *handler) overrides(v *visit) error {
	all, err := v.Overrides(v.ctx)
	v.failed("The overrides cannot be read.", err)
	policy := v.text("policy")
	if policy != "" {
		all = slices.DeleteFunc(all, func(o ginlimit.Override) bool { return o.Policy != policy })
	}
	body := cut(v, soonest(all), overridesShown)
	body.Policy, body.Path = policy, "overrides"
	return v.show("overrides", "Overrides", body)
}

// health is what the doctor finds.
func (h *handler) health(v *visit) error {
	all, err := bounded(v, func(ctx context.Context) ([]operate.Finding, error) {
		doctor, err := operate.New(h.rdb, operate.Config{Prefix: h.prefix, Timeout: h.patient})
		if err != nil {
			return nil, err
		}
		defer doctor.Close()
		return doctor.Examine(ctx), nil
	})
	if err != nil {
		all = []operate.Finding{{Check: "connection", State: operate.Problem, Advice: operate.Advice(err), Err: err}}
	}
	for i := range all {
		if err := all[i].Err; err != nil {
			all[i].Found = operate.Reason(err)
		}
	}
	return v.show("health", "Health", all)
}
