package model_test

import (
	"testing"

	"github.com/ginlimit/ginlimit/tests/model"
)

// TestSlotsAreNeverTooMany visits every state. A row's numbers are the bounds.
func TestSlotsAreNeverTooMany(t *testing.T) {
	searchAll(t, []bounds[model.SlotState]{
		{"two processes", &model.Slots{Processes: 2, N: 1, Life: 1, Window: 1, Attempts: 1, Reports: 1}, false},
		{"three processes that do not report", &model.Slots{Processes: 3, N: 2, Life: 1, Window: 1, Attempts: 1}, false},
		{"a process whose calls are late",
			&model.Slots{Processes: 1, N: 1, Life: 2, Window: 2, Attempts: 2, Reports: 2}, false},
		{"Redis loses its memory",
			&model.Slots{Processes: 1, N: 1, Life: 2, Window: 2, Attempts: 2, Reports: 1, Flushes: 1}, false},
		{"it decides itself",
			&model.Slots{Processes: 1, N: 1, Life: 1, Window: 2, Attempts: 2, Reports: 1, Flushes: 1, Late: true}, false},
	})
}

// TestMistakesOfSlotsAreFound, and the log has the shortest way to each.
func TestMistakesOfSlotsAreFound(t *testing.T) {
	with := func(m model.Mistake) *model.Slots {
		return &model.Slots{Processes: 1, N: 1, Life: 2, Window: 3, Attempts: 2, Reports: 2, Mistake: m}
	}
	searchMistakes(t, map[string]model.System[model.SlotState]{
		"a report counts also if a later one came before it": with(model.BelievesTheLatest),
		"a report says also what later attempts hold":        with(model.ForgetsTheLater),
		"an attempt without an answer counts as denied":      with(model.ForgetsTheLost),
		"a process is forgotten of which a call may come":    with(model.ForgetsDoubt),
		"a late report has it forgotten":                     with(model.LateForgets),
	})
}
