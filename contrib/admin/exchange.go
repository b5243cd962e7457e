package admin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

const (
	maxFile    = 1 << 20             // bytes, and one call's overrides: downloads are as many files as they need
	maxUpload  = 2*maxFile + maxForm // bytes: the form that confirms a file has it in base64
	stepsShown = 100
)

// download is one of the files that the overrides in force are.
type download struct{ Number, From, To int }

// downloadsOf returns the files that n overrides are.
func downloadsOf(n int) (all []download) {
	for from := 0; from < n; from += operate.MaxChanges {
		all = append(all, download{len(all) + 1, from + 1, min(from+operate.MaxChanges, n)})
	}
	return all
}

// export answers with overrides in force as a file.
func (h *handler) export(v *visit) error {
	all, err := v.wanted()
	if err != nil {
		return err
	}
	slices.SortFunc(all, operate.Listed.Compare)
	part := cut(v, all, operate.MaxChanges)
	file, err := v.File(v.ctx, part.Rows...)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(file, "", " ")
	if err != nil {
		return err
	}
	header := v.w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="overrides-%d.json"`, part.Page))
	_, _ = v.w.Write(append(text, '\n'))
	return nil
}

// importBody is a file of overrides, and what it does.
type importBody struct {
	Faults      []string // for which it does nothing
	Steps       []operate.Step
	Already     int    // overrides of the file that are in force
	Left        string // what no process serves yet, or ""
	Sentence    string
	File        string // what changes, as forms have it
	Unconfirmed bool
}

// Shown returns the first steps.
func (b *importBody) Shown() []operate.Step { return b.Steps[:min(len(b.Steps), stepsShown)] }

// importOf returns what the file of a request would do.
func (h *handler) importOf(v *visit) (*importBody, error) {
	if !v.may {
		return nil, errForbidden
	}
	text, err := v.file()
	if err != nil {
		return nil, err
	}
	entries, err := operate.ParseFile(text, maxFile, operate.MaxChanges)
	if err != nil {
		return nil, err
	}
	b, left := &importBody{}, map[string]int(nil)
	if entries, left, err = v.Served(v.ctx, entries); err != nil {
		return nil, err
	}
	if len(left) > 0 {
		b.Left = sentence(operate.LeftOut(left, shown)) + " Upload the file again when they serve them."
	}
	if b.Steps, err = v.Steps(v.ctx, entries, false); err != nil {
		return nil, err
	}
	b.Already = len(entries) - len(b.Steps)
	var file []*operate.Written // with the ends that the page shows
	added := 0
	for _, s := range b.Steps {
		if file = append(file, s.New); s.Change == operate.Adds {
			added++
		}
	}
	if text, err = json.Marshal(file); err != nil {
		return nil, err
	}
	b.File = base64.StdEncoding.EncodeToString(text)
	b.Sentence = fmt.Sprintf("Set overrides in every process within a second: %d new, "+
		"and %d in place of others. All others stay.", added, len(b.Steps)-added)
	return b, nil
}

// file returns the file of a request: as it was uploaded, or as the form that confirms it has it.
func (v *visit) file() ([]byte, error) {
	if text := v.r.PostFormValue("file"); text != "" {
		file, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, mistake("the file of the form cannot be read")
		}
		return file, nil
	}
	upload, _, err := v.r.FormFile("file")
	if err != nil {
		return nil, mistake("there is no file")
	}
	defer upload.Close()
	return io.ReadAll(io.LimitReader(upload, maxFile+1))
}

// confirmImport asks whether what a file does is meant.
func (h *handler) confirmImport(v *visit) error {
	b, err := h.importOf(v)
	if isMistake(err) {
		return v.showFaults(err)
	}
	if err != nil {
		return err
	}
	return v.show("import", "Is that right?", b)
}

// apply does what a file says, and shows what has become of it.
func (h *handler) apply(v *visit) error {
	b, err := h.importOf(v)
	if err == nil && len(b.Steps) > 0 {
		_, err = bounded(v, func(ctx context.Context) (struct{}, error) { return struct{}{}, v.Take(ctx, b.Steps) })
		for _, s := range b.Steps {
			h.log(v, "import", s.Override(), err)
		}
		if err != nil && !isMistake(err) {
			b.Unconfirmed = true
			v.unconfirmed(err)
			return v.show("import", "Not confirmed", b)
		}
	}
	switch {
	case isMistake(err):
		return v.showFaults(err)
	case err != nil:
		return err
	case len(b.Steps) == 0:
		return v.show("import", "Nothing to do", b)
	}
	v.said = "Done: " + b.Sentence
	return h.overrides(v)
}

// showFaults shows why a file does nothing.
func (v *visit) showFaults(err error) error {
	b, of := &importBody{}, (*operate.Fault)(nil)
	if errors.As(err, &of) {
		if joined, ok := of.Err.(interface{ Unwrap() []error }); ok {
			for _, one := range joined.Unwrap() {
				b.Faults = append(b.Faults, sentence(one.Error()))
			}
		}
	}
	if b.Faults == nil {
		b.Faults = []string{said(err)}
	}
	v.status = statusOf(err)
	return v.show("import", "Nothing was changed", b)
}
