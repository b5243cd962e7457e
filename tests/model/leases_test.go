package model_test

import (
	"testing"

	"github.com/ginlimit/ginlimit/tests/model"
)

// TestLeasesAdmitNoMore visits every state. A row's numbers are the bounds.
func TestLeasesAdmitNoMore(t *testing.T) {
	searchAll(t, []bounds[model.LeaseState]{
		{"three processes", &model.Leases{Processes: 3, B: 4, H: 2, Cost: 2, Drain: 1, Most: 1}, false},
		{"larger leases", &model.Leases{Processes: 3, B: 6, H: 4, Cost: 1, Drain: 1, Most: 2}, false},
		{"a failover", &model.Leases{Processes: 2, B: 4, H: 2, Cost: 2, Drain: 1, Most: 1, Failovers: 1}, false},
		{"clocks that lose ticks", &model.Leases{Processes: 2, B: 4, H: 2, Cost: 3, Drain: 1, Lost: 1, Most: 1}, false},
		{"tokens given back", &model.Leases{Processes: 2, B: 4, H: 2, Cost: 2, Drain: 1, Most: 1, Returns: 1}, false},
		{"both given back", &model.Leases{Processes: 2, B: 4, H: 2, Cost: 1, Drain: 1, Most: 1, Returns: 2}, false},

		{"three clocks", &model.Leases{Processes: 3, B: 4, H: 2, Cost: 3, Drain: 1, Lost: 1, Most: 1}, true},
		{"two failovers", &model.Leases{Processes: 3, B: 4, H: 2, Cost: 2, Drain: 1, Most: 1, Failovers: 2}, true},
	})
}

// TestMistakesOfLeasesAreFound, and the log has the shortest way to each.
func TestMistakesOfLeasesAreFound(t *testing.T) {
	searchMistakes(t, map[string]model.System[model.LeaseState]{
		"the limit is decided by its whole burst": &model.Leases{Processes: 2, B: 4, H: 2, Cost: 2, Drain: 1, Most: 1,
			Mistake: model.WithoutRoom},
		"what is held for longer is not charged": &model.Leases{Processes: 2, B: 5, H: 4, Cost: 1, Drain: 1, Most: 2,
			Mistake: model.HeldForFree},
		"a lease begins with the answer": &model.Leases{Processes: 2, B: 6, H: 4, Cost: 1, Drain: 1, Most: 2,
			Mistake: model.FromAnswer},
	})
}
