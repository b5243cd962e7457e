package overrides

import (
	"cmp"
	"fmt"
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

// begin is how the text of an override begins.
var begin = fmt.Sprintf(`{"v":%d,`, wire.TextVersion)

// entryOf returns an override by its name and text. The text is read whole only if they do not say all: a name may have
// hashes, and another program may have written the text. If nobody can read it, Read says so.
func entryOf(name, text string) Entry {
	end, hasEnd := wire.OverrideEnd(text)
	policy, client, ok := clientkey.Split(name)
	if !ok || !hasEnd || !strings.HasPrefix(text, begin) {
		o, err := Entry{text: text}.Read()
		switch {
		case err == nil:
			policy, client, end = o.Policy, o.Client, o.Until
		case !ok:
			policy = name
		}
		if err != nil && !hasEnd {
			end = time.Now().Add(unread).UnixMilli()
		}
	}
	return Entry{policy, client, time.UnixMilli(end), text}
}

// unread is how long an override of an unknown end is listed for.
const unread = time.Hour
