// Package admin is a page for operators: what limits are in force, who is denied, and what to do about it.
//
//	page, err := admin.New(limiter, rdb, admin.WithChanges(staffOf))
//	if err != nil {
//		panic(err)
//	}
//	router.Any("/staff/*page", authenticate, gin.WrapH(page))
//
// Whoever mounts it authenticates its visitors. It asks Redis when somebody looks, and never otherwise.
package admin

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
	"github.com/ginlimit/ginlimit/internal/goroutine"
)

const (
	patience = 2 * time.Second
	maxForm  = 64 << 10 // bytes
)

// handler serves the page.
type handler struct {
	config
	limiter *ginlimit.Limiter
	rdb     redis.UniversalClient
	origins *http.CrossOriginProtection
	patient time.Duration // for Redis, in one page
}

// New returns the page of a limiter's policies, and of all others under its prefix. It works under any path that ends
// with a slash, with or without [http.StripPrefix]. Redis need not be reachable. The error joins all faults, each a
// [ginlimit.OptionError].
func New(l *ginlimit.Limiter, rdb redis.UniversalClient, opts ...Option) (http.Handler, error) {
	c := config{prefix: ginlimit.DefaultPrefix, logger: slog.Default(), index: -1}
	isNil := rdb == nil || reflect.ValueOf(rdb).Kind() == reflect.Pointer && reflect.ValueOf(rdb).IsNil()
	c.require("rdb", !isNil, "the Redis client is nil")
	c.require("l", isMade(l), "the limiter was not made by NewLimiter")
	for i, opt := range opts {
		if c.index = i; opt != nil {
			opt(&c)
		} else {
			c.require("", false, "option %d is nil", i+1)
		}
	}
	if c.errs != nil {
		return nil, errors.Join(c.errs...)
	}
	return &handler{c, l, rdb, http.NewCrossOriginProtection(), patience}, nil
}

// isMade reports that a limiter was made by its constructor, without asking Redis.
func isMade(l *ginlimit.Limiter) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return !errors.Is(l.Ping(ctx), ginlimit.ErrInvalidArgument)
}

//go:embed web
var web embed.FS

// contentPolicy has the browser enforce that the page consists of its own files, sends its forms here, and stands in
// no other page.
const contentPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// view answers a request for one of the pages.
type view func(*handler, *visit) error

// views are the pages by the last element of their path. Those of POST alone have a client in their form, which no URL
// has: proxies log it.
var views = map[string]struct {
	show    view
	methods string
}{
	"":          {(*handler).overview, "GET HEAD"},
	"policies":  {(*handler).policies, "GET HEAD"},
	"policy":    {(*handler).policy, "GET HEAD"},
	"overrides": {(*handler).overrides, "GET HEAD"},
	"health":    {(*handler).health, "GET HEAD"},
	"client":    {(*handler).client, "GET HEAD POST"},
	"confirm":   {(*handler).confirm, "POST"},
	"change":    {(*handler).change, "POST"},
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", contentPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	_, name := path.Split(r.URL.Path)
	if name == "page.css" || name == "page.js" {
		header.Set("Cache-Control", "no-cache") // the next version of the program has others
		http.ServeFileFS(w, r, web, "web/"+name)
		return
	}
	header.Set("Cache-Control", "no-store")
	page, known := views[name]
	v := &visit{w: w, r: r, name: name}
	if v.who, v.may = "", false; h.who != nil {
		v.who, v.may = h.who(r)
	}
	switch {
	case !known:
		v.fail(http.StatusNotFound, "There is no such page.")
	case !slices.Contains(strings.Fields(page.methods), r.Method):
		header.Set("Allow", strings.ReplaceAll(page.methods, " ", ", "))
		v.fail(http.StatusMethodNotAllowed, "This page is not asked for in this way.")
	case h.origins.Check(r) != nil:
		v.fail(http.StatusForbidden, "The request comes from another site.")
	default:
		h.serve(v, page.show)
	}
}

// serve answers with a page, or with what is wrong with the request or with Redis.
func (h *handler) serve(v *visit, show view) {
	limit := h.patient
	if v.name == "health" { // the doctor asks many times
		limit *= 2
	}
	ctx, cancel := context.WithTimeout(v.r.Context(), limit)
	defer cancel()
	v.ctx = ctx
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, maxForm)
	if v.r.ParseForm() != nil {
		v.fail(http.StatusBadRequest, "The form cannot be read, or is too long.")
		return
	}
	operator, err := operate.New(h.rdb, operate.Config{Prefix: h.prefix, Secret: h.secret, Timeout: h.patient})
	if err != nil {
		v.fail(http.StatusInternalServerError, said(err))
		return
	}
	defer func() { go operator.Close() }() // which waits for what Redis does not answer
	v.Operator = operator
	v.notices = h.notices(v)
	if err := show(h, v); err != nil {
		v.fail(statusOf(err), said(err))
	}
}

// bounded calls a function that asks Redis until the visit's time ends, whatever the client's timeouts are.
func bounded[T any](v *visit, f func(context.Context) (T, error)) (T, error) {
	return goroutine.Bounded(v.ctx, 0, func() (T, error) { return f(v.ctx) })
}

// errForbidden is the error of who may not change anything.
var errForbidden = errors.New("forbidden")

func statusOf(err error) int {
	switch {
	case errors.Is(err, errForbidden):
		return http.StatusForbidden
	case isMistake(err):
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

func isMistake(err error) bool {
	return errors.As(err, new(*operate.Fault)) || errors.Is(err, ginlimit.ErrInvalidArgument)
}

// hints say what to fill in, by what is missing.
var hints = map[operate.Need]string{
	operate.NeedsLimits:   ": fill in its limits",
	operate.NeedsSecret:   ": the page needs it by admin.WithKeySecret, or the client's hash",
	operate.NeedsNoSecret: ": the page has admin.WithKeySecret, and finds its clients by hashes alone",
	operate.NeedsHash:     ": say which it is",
	operate.NeedsTenant:   ": fill in the tenant",
	operate.NeedsNoHash:   ": fill in the client itself, and no hash",
	operate.NeedsPrefix:   ": see Health, and admin.WithPrefix",
}

// said returns an error for people. What Redis or its client says stays out: it may have addresses and keys.
func said(err error) string {
	of := (*operate.Fault)(nil)
	switch {
	case errors.Is(err, errForbidden):
		return "You may look, and change nothing."
	case errors.As(err, &of):
		return sentence(err.Error() + hints[of.Need])
	case isMistake(err):
		return sentence(err.Error())
	case errors.Is(err, ginlimit.ErrClosed):
		return "The limiter of this process is closed."
	}
	return fmt.Sprintf("Redis does not serve this: %s. %s", operate.Reason(err), sentence(operate.Advice(err)))
}

// sentence returns what an error says as a sentence.
func sentence(text string) string {
	text = strings.TrimPrefix(operate.WithoutSecrets(text), "ginlimit: ")
	text = strings.ReplaceAll(text, "\nginlimit: ", "; ")
	text = strings.ReplaceAll(text, "\n", "; ")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
