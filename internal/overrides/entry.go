package overrides

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/ginlimit/ginlimit/internal/clientkey"
	"github.com/ginlimit/ginlimit/internal/wire"
)

// Entry is an override in a list. Its limits and note are read when somebody wants them: of thousands, few do.
type Entry struct {
	Policy, Client string
	Until          time.Time
	text           string
}

// Compare orders entries by policy and client.
func (e Entry) Compare(other Entry) int {
	return cmp.Or(strings.Compare(e.Policy, other.Policy), strings.Compare(e.Client, other.Client))
}

// Read returns the override.
func (e Entry) Read() (o Override, err error) {
	err = wire.UnmarshalText(e.text, &o.Version, &o)
	return o, err
}

const (
	begin = `{"v":` // of the text of an override
	until = `"until":`
)

// entryOf returns an override by its name and text. The text is read whole only if they do not say all: a name may have
// hashes, and another program may have written the text. In a string of JSON no quote stands without a backslash.
func entryOf(name, text string) (Entry, error) {
	version, _, _ := strings.Cut(strings.TrimPrefix(text, begin), ",")
	_, ends, _ := strings.Cut(text, until)
	ends = ends[:max(0, strings.IndexAny(ends, ",}"))]
	end, err := strconv.ParseInt(ends, 10, 64)
	policy, client, ok := clientkey.Split(name)
	if ok && err == nil && version == strconv.Itoa(wire.TextVersion) {
		return Entry{policy, client, time.UnixMilli(end), text}, nil
	}
	o, err := Entry{text: text}.Read()
	return Entry{o.Policy, o.Client, time.UnixMilli(o.Until), text}, err
}
