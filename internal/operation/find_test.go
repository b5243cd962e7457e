package operation

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// BenchmarkFind is what overrides add to each decision on a client that has none.
func BenchmarkFind(b *testing.B) {
	for _, n := range []int{0, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			o := New(Config[string]{
				Store: new(Local), Changed: func() {}, Limits: func(text string) (string, error) { return text, nil },
			})
			for i := range n {
				change := Override{Policy: "api", Client: fmt.Sprint("customer-", i), Limits: "1/m",
					Until: time.Now().Add(time.Hour).UnixMilli()}.Change(false)
				require.NoError(b, o.Change(b.Context(), []wire.OverrideChange{change}))
			}
			for b.Loop() {
				if _, ok := o.Find("api", "203.0.113.77"); ok {
					b.Fatal("there is none")
				}
			}
		})
	}
}
