package published_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/published"
	"github.com/ginlimit/ginlimit/internal/upkeep"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// store has what was published last, and how often.
type store struct {
	published.Local
	last  []string
	calls int
}

func (s *store) Publish(_ context.Context, p *wire.Publication) (int, error) {
	s.last = nil
	for _, text := range p.Texts {
		s.last = append(s.last, text)
	}
	slices.Sort(s.last)
	s.calls++
	return len(p.Texts), nil
}

// TestAProcessPublishesWhatItsLimitersServe, each policy once, and with its key while one of them has a handler of it.
func TestAProcessPublishesWhatItsLimitersServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			byMethods = `{"v":1,"name":"api","key":"","headers":0}`
			byHandler = `{"v":1,"name":"api","key":"ByClientIP","headers":0,"handler":true}`
		)
		var s store
		u := upkeep.New(upkeep.Config{Failed: func(err error) { t.Error(err) }})
		defer u.End()
		p := published.New(&s, "P", u)
		passes := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		serve := func(l *published.Limiter, handler bool) {
			l.Serve(published.Policy{Name: "api", Key: "ByClientIP", Handler: handler})
			u.Use(t.Context(), time.Second)
			passes(time.Second)
		}
		one, two := p.Join(), p.Join()
		serve(one, false)
		require.Equal(t, []string{byMethods}, s.last)
		serve(two, true)
		require.Equal(t, []string{byHandler}, s.last)
		calls := s.calls
		serve(one, true)
		serve(two, false)
		require.Equal(t, calls, s.calls, "nothing is new")
		one.Leave()
		passes(time.Minute)
		require.Equal(t, []string{byHandler}, s.last)
		three := p.Join()
		serve(three, false)
		two.Leave()
		passes(time.Minute)
		require.Equal(t, []string{byMethods}, s.last)
		calls = s.calls
		three.Leave()
		serve(three, true)
		passes(time.Hour)
		require.Equal(t, calls, s.calls)
	})
}
