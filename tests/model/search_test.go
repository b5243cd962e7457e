package model_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/testkit"
	"github.com/ginlimit/ginlimit/tests/model"
)

// bounds are the numbers by which a model is searched.
type bounds[S any] struct {
	name   string
	system model.System[S]
	full   bool // only with -full
}

// mostStates is more than any search visits.
const mostStates = 200_000_000

// searchAll visits every state of each row, and wants none to be broken.
func searchAll[S any](t *testing.T, rows []bounds[S]) {
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			if row.full && !testkit.Full() {
				t.Skip("-full searches it")
			}
			found := model.Search(row.system, mostStates)
			t.Logf("%+v: %s", row.system, found)
			require.Empty(t, found.Broken, strings.Join(found.Trace, "\n"))
			require.True(t, found.Whole, "there are more states")
		})
	}
}

// searchMistakes wants each of the models to do something wrong.
func searchMistakes[S any](t *testing.T, mistakes map[string]model.System[S]) {
	for name, system := range mistakes {
		t.Run(name, func(t *testing.T) {
			found := model.Search(system, mostStates)
			require.NotEmpty(t, found.Broken, "%+v: %s", system, found)
			t.Log(fmt.Sprintf("%+v: %s\n", system, found), strings.Join(found.Trace, "\n"), "\n"+found.Broken)
		})
	}
}
