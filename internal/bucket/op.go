package bucket

// Verb is what is to be done with the buckets of a key.
type Verb uint8

const (
	Take   Verb = iota // charge all of them or none
	Charge             // charge each, into debt if it must, up to a burst of it
	Give               // give tokens back to each: of a window, those that were taken last
	Return             // give back to each what one call has taken, as far as it still counts
	Block              // have each refuse for a time; none refuses for less than before
	Reset              // fill each up
)

// NoMark stands for a mark that is not known.
const NoMark = -1

// Op is what a caller wants of the buckets of a key. The zero Op looks: it takes nothing.
type Op struct {
	Verb    Verb
	Charges int64   // Take: as many as fit are made; 0 makes none
	N       int64   // Take: tokens of a charge; Charge, Give and Return: tokens; Block: milliseconds; at least 1, of Reset too
	Marks   []int64 // Return: of each window, the mark that the call has left, or NoMark: then nothing is given back
}

// Peek returns the Op that looks at what a charge of n tokens would meet.
func Peek(n int64) Op { return Op{Verb: Take, N: n} }

// Merges reports whether calls with o and other on the same buckets can be one call, for the sum of their charges.
func (o Op) Merges(other Op) bool {
	takes := o.Verb == Take && other.Verb == Take && o.Charges > 0 && other.Charges > 0
	return takes && o.N == other.N && o.Charges <= MaxUnits-other.Charges
}

// Only returns the Op for one of the buckets.
func (o Op) Only(i int) Op {
	if o.Marks != nil {
		o.Marks = o.Marks[i : i+1]
	}
	return o
}
