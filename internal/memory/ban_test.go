package memory

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ginlimit/ginlimit/internal/bucket"
)

// banned is a client of two tokens a second and of one slot, with a ban of 10 s at first and 50 s
// at most.
type banned struct {
	*clients
	buckets []bucket.Bucket
	inUse   int64 // slots
}

func newBanned(t *testing.T) *banned {
	b := &banned{clients: clientsOf(New(1000))}
	b.buckets = []bucket.Bucket{newBucket(t, bucket.Token, 2, time.Second), bucket.NewBan(10_000, 50_000),
		bucket.NewSlots(1)}
	time.Sleep(12_345 * time.Millisecond)
	return b
}

// ask returns the state of the ban.
func (b *banned) ask(op bucket.Op) bucket.State {
	states := []bucket.State{{}, {Level: 7, Wait: 7}, {Level: b.inUse}}
	b.store.Do(b.key(0), b.buckets, op, states)
	return states[1]
}

// denied asks for more tokens than the bucket holds.
func (b *banned) denied() bucket.State {
	return b.ask(bucket.Op{Verb: bucket.Take, Charges: 1, N: 3, Bans: bucket.AllBans})
}

func TestBansGrowOnProbation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBanned(t)
		after := func(ms int64) bucket.State {
			time.Sleep(time.Duration(ms) * time.Millisecond)
			return b.denied()
		}
		require.Equal(t, bucket.State{Wait: 10_000}, b.denied())
		require.Equal(t, bucket.State{Level: 10_000, Wait: 10_000}, b.denied(),
			"a denial during a ban does not prolong it")
		require.Equal(t, bucket.State{Level: 1, Wait: 1}, after(9999))
		time.Sleep(time.Millisecond)
		require.Equal(t, bucket.State{}, b.ask(bucket.Peek(1)))
		require.Equal(t, bucket.State{Wait: 20_000}, b.denied())
		require.Equal(t, bucket.State{Wait: 40_000}, after(39_999), "the last moment of probation")
		require.Equal(t, bucket.State{Wait: 10_000}, after(80_000), "it is over")
		require.Equal(t, bucket.State{Wait: 20_000}, after(10_000))
		require.Equal(t, bucket.State{Wait: 40_000}, after(20_000))
		require.Equal(t, bucket.State{Wait: 50_000}, after(40_000))
		require.Equal(t, bucket.State{Wait: 50_000}, after(50_000))
		b.ask(bucket.Op{Verb: bucket.Reset, N: 1})
		require.Equal(t, bucket.State{Wait: 10_000, Era: 1}, b.denied())
	})
}

func TestWhichDenialsBan(t *testing.T) {
	t.Parallel()
	denial := func(bans bucket.Bans) bucket.Op { return bucket.Op{Verb: bucket.Take, Charges: 1, N: 3, Bans: bans} }
	for name, row := range map[string]struct {
		op    bucket.Op
		inUse int64
		bans  bool
	}{
		"a grant": {bucket.Op{Verb: bucket.Take, Charges: 1, N: 1, Bans: bucket.AllBans}, 0,
			false},
		"a look":                         {bucket.Op{Verb: bucket.Take, N: 3, Bans: bucket.AllBans}, 0, false},
		"a denial":                       {denial(bucket.AllBans), 0, true},
		"without a ban":                  {denial(bucket.NoBans), 0, false},
		"by a limit":                     {denial(bucket.LimitBans), 0, true},
		"by a limit, and without a slot": {denial(bucket.LimitBans), 1, false},
		"without a slot": {bucket.Op{Verb: bucket.Take, Charges: 1, N: 1, Bans: bucket.LimitBans},
			1, false},
		"without a slot, where that bans": {bucket.Op{Verb: bucket.Take, Charges: 1, N: 1, Bans: bucket.AllBans}, 1,
			true},
		"a part, for want of a slot": {bucket.Op{Verb: bucket.Take, Charges: 2, N: 1, Bans: bucket.LimitBans},
			0, false},
		"a part, where that bans": {bucket.Op{Verb: bucket.Take, Charges: 2, N: 1, Bans: bucket.AllBans}, 0,
			true},
		"a charge": {bucket.Op{Verb: bucket.Charge, Charges: 1, N: 3, Bans: bucket.AllBans},
			0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBanned(t)
				b.inUse = row.inUse
				var want bucket.State
				if row.bans {
					want.Wait = 10_000
				}
				require.Equal(t, want, b.ask(row.op))
				want.Level = want.Wait
				require.Equal(t, want, b.ask(bucket.Peek(1)))
			})
		})
	}
}
