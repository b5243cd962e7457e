package operate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHolders of slots, of which one has ended, and one has none.
func TestHolders(t *testing.T) {
	t.Parallel()
	entries := map[string]string{"all": "11122 5000 6 4", "PB": "1 3 3 11114 ", "PA": "7 1 2 9999 8,", "PC": "1 1 1 5000 ",
		"PD": "1 0 0 9999 "}
	require.Equal(t, []Holder{{"PA", 2}, {"PB", 3}}, holders(entries, 5*time.Second))
}
