package web_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/internal/testkit"
)

// TestResultAsJSON, to the byte.
func TestResultAsJSON(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]ginlimit.Result{
		`{"allowed":true,"granted":2,"limit":"5/h burst 9","name":"api","remaining":7,"retry_after":0,` +
			`"reset_after":1440,"source":"redis"}`: {
			Allowed: true, Granted: 2, Limit: ginlimit.PerHour(5).WithBurst(9), Name: "api", Remaining: 7,
			ResetAfter: 24 * time.Minute,
		},
		`{"allowed":false,"granted":0,"limit":"2 in flight","name":"api-c","remaining":0,"retry_after":1.5,` +
			`"reset_after":0.012,"source":"policy","cause":"queue_full"}`: {
			Limit: ginlimit.InFlight(2), Name: "api-c", RetryAfter: 1500 * time.Millisecond,
			ResetAfter: 12 * time.Millisecond, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseQueueFull,
		},
		`{"allowed":true,"granted":0,"limit":"unlimited","name":"a\"b","remaining":null,"retry_after":0,` +
			`"reset_after":0,"source":"policy"}`: {
			Allowed: true, Limit: ginlimit.Unlimited(), Name: `a"b`, Remaining: math.MaxInt, Source: ginlimit.FromPolicy,
		},
		`{"allowed":false,"granted":0,"limit":"","name":"api","remaining":0,"retry_after":null,` +
			`"reset_after":0,"source":"policy","cause":"list"}`: {
			Name: "api", RetryAfter: -1, Source: ginlimit.FromPolicy, Cause: ginlimit.CauseList,
		},
	} {
		text := testkit.Must(json.Marshal(r))
		require.Equal(t, want, string(text))
		text = testkit.Must(json.Marshal([]*ginlimit.Result{&r}))
		require.Equal(t, "["+want+"]", string(text))
	}
}
