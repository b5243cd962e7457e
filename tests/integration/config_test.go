//go:build nightly

package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
)

// TestViperReadsLimits as docs/guide.md says, beside what its own hooks read. A limit that is none is an error that
// says where it stands.
func TestViperReadsLimits(t *testing.T) {
	type config struct {
		Search []ginlimit.Limit
		Export ginlimit.Limit
		Cache  time.Duration
		Hosts  []string
		Ports  []int
	}
	read := func(text string) (c config, err error) {
		v := viper.New()
		v.SetConfigType("yaml")
		require.NoError(t, v.ReadConfig(strings.NewReader(text)))
		return c, v.Unmarshal(&c, viper.DecodeHook(mapstructure.ComposeDecodeHookFunc(mapstructure.TextUnmarshallerHookFunc(),
			mapstructure.StringToTimeDurationHookFunc(), mapstructure.StringToWeakSliceHookFunc(","))))
	}
	c, err := read("search: [100/m, 4 in flight]\nexport: 10/s burst 20\ncache: 30s\nhosts: a,b\nports: 1,2\n")
	require.NoError(t, err)
	require.Equal(t, config{[]ginlimit.Limit{ginlimit.PerMinute(100), ginlimit.InFlight(4)},
		ginlimit.PerSecond(10).WithBurst(20), 30 * time.Second, []string{"a", "b"}, []int{1, 2}}, c)
	c, err = read("search: 100/m,4 in flight\n")
	require.NoError(t, err, "as in a variable of the environment")
	require.Len(t, c.Search, 2)
	_, err = read("search: [100/m, many]\n")
	require.ErrorContains(t, err, "Search[1]")
	require.ErrorContains(t, err, `"many"`)
}
