package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/ginlimit/ginlimit/contrib/top"
)

const (
	minutes   = 11 // ten, and the current one
	barWidth  = 8
	barHeight = 40
)

// picture is the decisions of a policy in the last ten minutes, by outcome, as bars.
type picture struct {
	Bars        []bar
	Sum         top.Minute
	DenialsOnly bool // the application does not count others
}

// bar is a minute. Its parts stand on each other.
type bar struct {
	X     int
	Parts []part
}

type part struct {
	Kind      string
	Y, Height int
}

// Text says what the picture shows.
func (p picture) Text() string {
	s := p.Sum
	if p.DenialsOnly {
		return count(s.Denied) + " denied"
	}
	text := count(s.Allowed) + " allowed, " + count(s.Denied) + " denied"
	for _, of := range []struct {
		n    int64
		kind string
	}{{s.Skipped, "skipped"}, {s.Failed, "failed"}} {
		if of.n > 0 {
			text += fmt.Sprintf(", %s %s", count(of.n), of.kind)
		}
	}
	return text
}

// Share returns the denials in a hundred decisions.
func (p picture) Share() string {
	if all := p.Sum.Allowed + p.Sum.Denied; all > 0 && !p.DenialsOnly {
		return fmt.Sprintf("%.1f %% denied", 100*float64(p.Sum.Denied)/float64(all))
	}
	return ""
}

// pictureOf reads what processes have reported of a policy, or returns nil if there are no reports.
func (h *handler) pictureOf(v *visit, policy string) (*picture, error) {
	all, err := bounded(v, func(ctx context.Context) ([]top.Minute, error) {
		return top.Minutes(ctx, h.rdb, h.prefix, policy)
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return draw(all, time.Now()), nil
}

// draw returns the picture of minutes. They are Redis': if another clock is far off, the last one stands at the end.
func draw(all []top.Minute, now time.Time) *picture {
	p, most := &picture{}, int64(1)
	end, last := now.Truncate(time.Minute), all[len(all)-1].Start
	if ahead := last.Sub(end); ahead > 0 || ahead <= -minutes*time.Minute {
		end = last
	}
	for _, m := range all {
		p.Sum.Allowed, p.Sum.Denied = p.Sum.Allowed+m.Allowed, p.Sum.Denied+m.Denied
		p.Sum.Skipped, p.Sum.Failed = p.Sum.Skipped+m.Skipped, p.Sum.Failed+m.Failed
		most = max(most, m.Allowed+m.Denied+m.Skipped+m.Failed)
	}
	p.DenialsOnly = p.Sum.Allowed+p.Sum.Skipped+p.Sum.Failed == 0
	for _, m := range all {
		at := minutes - 1 - int(end.Sub(m.Start)/time.Minute)
		if at < 0 || at >= minutes {
			continue // a report came late
		}
		b, y := bar{X: at * barWidth}, barHeight
		for _, of := range []struct {
			kind string
			n    int64
		}{{"allowed", m.Allowed}, {"skipped", m.Skipped}, {"failed", m.Failed}, {"denied", m.Denied}} {
			height := int(of.n * barHeight / most)
			if of.n > 0 {
				height = max(height, 1)
			}
			if height = min(height, y); height > 0 {
				y -= height
				b.Parts = append(b.Parts, part{of.kind, y, height})
			}
		}
		p.Bars = append(p.Bars, b)
	}
	return p
}
