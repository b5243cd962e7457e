package admin

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

// visit is a request for a page, and what all pages show.
type visit struct {
	*operate.Operator
	w       http.ResponseWriter
	r       *http.Request
	ctx     context.Context
	name    string
	who     string
	may     bool     // change something
	notices []notice // above the page
	said    string   // what was done
	status  int      // of the answer; 0 is 200
}

// notice says that something is wrong with the limiter or with Redis.
type notice struct{ Text, Why string }

// notices are about this process, and about whether Redis answers it.
func (h *handler) notices(v *visit) (all []notice) {
	err := h.limiter.Ping(v.ctx)
	stats := h.limiter.Stats()
	switch {
	case errors.Is(err, ginlimit.ErrClosed):
		all = append(all, notice{"The limiter of this process is closed.",
			"It decides nothing any more. Other processes may go on."})
	case err != nil:
		all = append(all, notice{"Redis does not answer this process.", said(err)})
	}
	if stats.LostServers > 0 {
		all = append(all, notice{"Degraded: this process decides without Redis.", degraded(stats)})
	}
	return all
}

// degraded says why a limiter decides without Redis.
func degraded(of ginlimit.Stats) string {
	var all []string
	for t, n := range of.Transitions {
		switch {
		case t.To != "open":
		case n == 1:
			all = append(all, string(t.Reason)+" (once)")
		default:
			all = append(all, fmt.Sprintf("%s (%d times)", t.Reason, n))
		}
	}
	slices.Sort(all)
	why := "It has opened by: " + strings.Join(all, ", ") + "."
	if all == nil {
		why = "What has opened it is not known yet."
	}
	return fmt.Sprintf("The circuit breaker of %d of %d servers is open. %s WithFailureMode decides.",
		of.LostServers, of.Servers, why)
}

// failed reports whether something could not be read. A notice says so, and the page goes on without it.
func (v *visit) failed(what string, err error) bool {
	if err != nil && (v.ctx.Err() == nil || len(v.notices) == 0) { // a notice says that all is late
		v.notices = append(v.notices, notice{what, said(err)})
	}
	return err != nil
}

// frame is what a template gets.
type frame struct {
	Page, Title, Who, Said string
	May, Refresh           bool
	Notices                []notice
	Body                   any
}

// show answers with a page.
func (v *visit) show(page, title string, body any) error {
	var text bytes.Buffer
	err := templates.ExecuteTemplate(&text, page+".html", frame{
		page, title, v.who, v.said, v.may, v.r.Method != http.MethodPost && page != "health", v.notices, body,
	})
	if err != nil {
		return err
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(max(v.status, http.StatusOK))
	_, _ = v.w.Write(text.Bytes())
	return nil
}

// fail answers that a request cannot be done.
func (v *visit) fail(status int, text string) {
	v.status, v.notices = status, nil
	if v.show("fault", "Not done", text) != nil {
		v.w.WriteHeader(http.StatusInternalServerError)
	}
}

// templates are the pages.
var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"text": shown, "span": operate.Span, "limits": limitsText, "key": operate.KeyText, "options": operate.OptionsText,
	"time":      operate.TimeText,
	"tags":      func(p ginlimit.PolicyInfo) []string { return strings.Fields(operate.OptionsText(p)) },
	"ago":       func(t time.Time) string { return operate.Span(time.Since(t).Truncate(time.Second)) + " ago" },
	"downloads": downloadsOf, "code": encodeClient, "count": count, "hash": operate.ReadsAsHash,
	"form": func(of ...any) map[string]any {
		fields := map[string]any{}
		for i := 0; i+1 < len(of); i += 2 {
			fields[of[i].(string)] = of[i+1]
		}
		return fields
	},
}).ParseFS(web, "web/*.html"))

// shown returns text of others without what can turn or hide what stands around it.
func shown(text string) string {
	isShown := func(r rune) bool { return unicode.IsGraphic(r) && r != unicode.ReplacementChar }
	var all strings.Builder
	for i, r := range text {
		switch {
		case isShown(r):
			all.WriteRune(r)
		case r == unicode.ReplacementChar && !strings.HasPrefix(text[i:], string(r)): // no UTF-8
			fmt.Fprintf(&all, `\x%02x`, text[i])
		default:
			fmt.Fprintf(&all, `\u%04x`, r)
		}
	}
	return all.String()
}

func limitsText(p ginlimit.PolicyInfo) string { return operate.LimitsText(p.Limits, p.Options) }

// count returns a number with commas.
func count(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// encodeClient returns a client as forms have it: browsers change line breaks, and what is no UTF-8.
func encodeClient(client string) string { return base64.RawURLEncoding.EncodeToString([]byte(client)) }

// clientOf returns the client of a form: as somebody wrote it, or as a page has encoded it.
func (v *visit) clientOf() (string, error) {
	if code := v.r.PostFormValue("code"); code != "" {
		text, err := base64.RawURLEncoding.DecodeString(code)
		if err != nil {
			return "", &operate.Fault{Err: errors.New("the client of the form cannot be read")}
		}
		return string(text), nil
	}
	return strings.TrimSpace(v.r.PostFormValue("client")), nil
}

// hashOf says whether the client of a form is a hash.
func (v *visit) hashOf() operate.Hash {
	switch v.r.PostFormValue("hash") {
	case "yes":
		return operate.IsHash
	case "no":
		return operate.IsName
	}
	return operate.HashUnsaid
}

// limitsOf returns the limits of a form's field, separated by commas.
func limitsOf(text string) ([]ginlimit.Limit, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	return operate.ParseLimits(strings.Split(text, ","))
}

func (v *visit) text(field string) string { return strings.TrimSpace(v.r.FormValue(field)) }
