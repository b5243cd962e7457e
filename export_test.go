package ginlimit

// What outsiders control and nobody exports: fuzzed from outside.
var (
	DecodeLevels = decodeLevels
	SlotText     = slotText
)
