package bucket

import "slices"

// Kinds of limits in a list that are not of one [Kind].
const (
	TokensCalendar = Kinds     // token buckets and calendar periods
	Mixed          = Kinds + 1 // any others
)

// Layout is what is known of a list of buckets, whatever a call does to them. It is found once for each list.
// The limits come first in a list.
type Layout struct {
	Limits                     int   // how many of the buckets belong to limits
	Kinds                      int   // of the limits: their Kind if it is one, else TokensCalendar or Mixed
	Ban, Slots, Tenants, Ahead int   // the index of the first of this kind, or -1
	Single                     bool  // the list is one limit
	Integers                   []int // how many integers the scripts reply of the state of each
	All, Short                 int   // how many of all, and in a short reply, in which each limit has one
}

// NewLayout returns the layout of a list.
func NewLayout(buckets []Bucket) *Layout {
	l := &Layout{Limits: Counted(buckets), Kinds: Mixed}
	l.Ban, l.Slots = first(buckets, Ban), first(buckets, Slots)
	l.Tenants, l.Ahead = first(buckets, Tenants), first(buckets, Ahead)
	same, short := l.Limits > 0, true
	for i := range buckets {
		b := &buckets[i]
		n := kinds[b.Kind].integers
		l.Integers, l.All, l.Short = append(l.Integers, n), l.All+n, l.Short+n
		if i < l.Limits {
			l.Short += 1 - n
			same = same && b.Kind == buckets[0].Kind
			short = short && (b.Kind == Token || b.Ends != 0)
		}
	}
	switch {
	case same:
		l.Kinds = int(buckets[0].Kind)
	case short:
		l.Kinds = TokensCalendar
	}
	l.Single = l.Limits == 1 && len(buckets) == 1
	return l
}

// first returns the index of the first bucket of a kind, or -1.
func first(buckets []Bucket, kind Kind) int {
	return slices.IndexFunc(buckets, func(b Bucket) bool { return b.Kind == kind })
}
