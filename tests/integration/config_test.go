package integration

import (
	"strings"
	"testing"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// TestViperReadsLimits as docs/guide.md says. A limit that is none is an error that says where it stands.
func TestViperReadsLimits(t *testing.T) {
	read := func(search string) (limits map[string][]ginlimit.Limit, err error) {
		v := viper.New()
		v.SetConfigType("yaml")
		if err := v.ReadConfig(strings.NewReader("search:\n" + search)); err != nil {
			return nil, err
		}
		return limits, v.Unmarshal(&limits, viper.DecodeHook(mapstructure.TextUnmarshallerHookFunc()))
	}
	limits, err := read("  - 100/m\n  - 4 in flight\n")
	require.NoError(t, err)
	require.Equal(t, map[string][]ginlimit.Limit{"search": {ginlimit.PerMinute(100), ginlimit.InFlight(4)}}, limits)
	_, err = read("  - 100/m\n  - many\n")
	require.ErrorContains(t, err, "[search][1]")
	require.ErrorContains(t, err, `"many"`)
}
