package bucket

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOpsMerge(t *testing.T) {
	t.Parallel()
	take := func(charges, n int64) Op { return Op{Verb: Take, Charges: charges, N: n} }
	ahead, longer := take(1, 1), take(1, 1)
	ahead.Ahead, longer.Held = 1, 1
	for name, c := range map[string]struct {
		a, b Op
		want bool
	}{
		"what is taken ahead":         {ahead, take(1, 1), false},
		"what others take ahead":      {take(1, 1), ahead, false},
		"what is held for longer":     {longer, take(1, 1), false},
		"what others hold for longer": {take(1, 1), longer, false},
		"of one token each":           {take(1, 1), take(1, 1), true},
		"of several charges":          {take(3, 2), take(5, 2), true},
		"of charges of other sizes":   {take(1, 1), take(1, 2), false},
		"a look and a charge":         {Peek(1), take(1, 1), false},
		"a charge and a look":         {take(1, 1), Peek(1), false},
		"two looks":                   {Peek(1), Peek(1), false},
		"as many as can be counted":   {take(MaxUnits-1, 1), take(1, 1), true},
		"more than can be counted":    {take(MaxUnits, 1), take(1, 1), false},
		"what is given back":          {Op{Verb: Give, N: 1}, Op{Verb: Give, N: 1}, false},
		"a charge and what is given":  {take(1, 1), Op{Verb: Give, Charges: 1, N: 1}, false},
		"two blocks":                  {Op{Verb: Block, N: 1}, Op{Verb: Block, N: 1}, false},
		"a charge and a reset":        {take(1, 1), Op{Verb: Reset}, false},
		"two returns of equal tokens": {Op{Verb: Return, N: 1}, Op{Verb: Return, N: 1}, false},
	} {
		assert.Equal(t, c.want, c.a.Merges(c.b), name)
	}
}
