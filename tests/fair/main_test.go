package fair_test

import (
	"testing"

	"github.com/ginlimit/ginlimit/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
