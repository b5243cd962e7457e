package overrides

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/wire"
)

// FuzzEntry: a list says of an override what its text says, whatever clients and operators write in it.
func FuzzEntry(f *testing.F) {
	for _, text := range []string{"", "a", `a|b\c`, `","until":7,"`, `"until":7`, "é\n", string(make([]byte, 2000))} {
		f.Add("api", text, text, int64(1_800_000_000_000))
		f.Add(text, "client", text, int64(-7))
	}
	f.Fuzz(func(t *testing.T, policy, client, note string, until int64) {
		o := Override{Policy: policy, Client: client, Limits: "5/m", Until: until, Note: note}
		change := o.Change(false)
		var want Override
		require.NoError(t, json.Unmarshal([]byte(change.Text), &want)) // which changes what is no UTF-8
		if want.Policy != policy || want.Client != client {
			t.Skip("a limiter takes no such override")
		}
		e := entryOf(change.Name, change.Text)
		require.Equal(t, want.Policy, e.Policy)
		require.Equal(t, want.Client, e.Client)
		require.Equal(t, time.UnixMilli(want.Until), e.Until)
		read, err := e.Read()
		require.NoError(t, err)
		require.Equal(t, want, read)
	})
}

// TestEntriesOfOthers are read whole: what cannot be read is listed by its name, and is an error to whoever reads it.
func TestEntriesOfOthers(t *testing.T) {
	t.Parallel()
	e := entryOf("api|a", `{"policy":"api","client":"a","until": 1800000000000, "v":1}`)
	require.Equal(t, time.UnixMilli(1_800_000_000_000), e.Until)
	for _, text := range []string{"", "{", `{"v":1}x`, `{"v":2,"policy":"api","limits":"5/m","until":1800000000000}`} {
		e := entryOf("api|a", text)
		require.Equal(t, [2]string{"api", "a"}, [2]string{e.Policy, e.Client}, text)
		require.Positive(t, time.Until(e.Until), text)
		_, err := e.Read()
		require.ErrorIs(t, err, wire.ErrUnreadable, text)
	}
	require.Equal(t, "no|name|of ours", entryOf("no|name|of ours", "").Policy)
}
