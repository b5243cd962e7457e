package operate

import (
	"regexp"
	"strings"
)

// NotShown stands where a URL stood.
const NotShown = "(a URL, which is not shown)"

// Arguments is how an error of Redis begins to list the arguments of a command that it does not know, such as AUTH.
const Arguments = ", with args beginning with"

// foreign is where the text of others may have a part of a URL: to its end, as a password may have spaces.
var foreign = regexp.MustCompile(`(?s)\S*(?:://\S|:\S*@).*`)

// WithoutSecrets returns the text of others, such as a library's error, without anything that may be of a URL.
func WithoutSecrets(text string) string {
	text, _, _ = strings.Cut(text, Arguments)
	return foreign.ReplaceAllString(text, NotShown)
}

// ErrorText returns an error in one line, without secrets.
func ErrorText(err error) string {
	return strings.Join(strings.Fields(WithoutSecrets(err.Error())), " ")
}
