package bucket

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryKindIsWhole(t *testing.T) {
	t.Parallel()
	require.Len(t, kinds, int(Tenants)+1)
	for number, k := range kinds {
		require.Equal(t, number < Kinds, k.module != "", number)
		require.True(t, k.integers > 0 && k.fits != nil && k.charged != nil && k.retryAfter != nil &&
			k.resetAfter != nil && k.moreAfter != nil && k.denies != nil, number)
	}
}
