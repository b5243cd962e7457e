package wire

import (
	"encoding/json"
	"errors"
	"fmt"
)

// TextVersion is the version of the texts of overrides and policies that are written, and the newest that is read.
const TextVersion = 1

// ErrUnreadable says that a text of a store cannot be read.
var ErrUnreadable = errors.New("what Redis has of overrides or policies cannot be read")

// MarshalText returns the text of an override or a policy.
func MarshalText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers have texts
	}
	return string(text)
}

// UnmarshalText reads what MarshalText has written.
func UnmarshalText(text string, version *int, v any) error {
	err := json.Unmarshal([]byte(text), v)
	switch {
	case *version > TextVersion:
		return fmt.Errorf("%w: a newer version of ginlimit has written it", ErrUnreadable)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return nil
}
