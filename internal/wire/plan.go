package wire

import "time"

// tokenSuffix is appended to the name of a plan to name its token.
const tokenSuffix = ":token"

// Plan returns the source of the script that stores a plan.
func Plan() string { return part("plan") }

// PlanToken returns the name of a plan's token.
func PlanToken(key string) string { return key + tokenSuffix }

// EncodePlan returns the keys and arguments of plan.lua.
func EncodePlan(key, token, text string, life time.Duration) (keys []string, args []any) {
	return []string{key, PlanToken(key)}, []any{token, text, life.Milliseconds()}
}
