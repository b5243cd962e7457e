package httpfields

import (
	"strconv"
	"sync/atomic"
)

// maxNumber is the largest number whose text is always kept. An hour has fewer seconds.
const maxNumber = 1<<12 - 1

var numbers = func() (texts [maxNumber + 1]string) {
	for i := range texts {
		texts[i] = strconv.Itoa(i)
	}
	return texts
}()

// number is a number with its text.
type number struct {
	n    int64
	text string
}

// recent are larger numbers that were written lately.
var recent [256]atomic.Pointer[number]

// keptText returns the text of a larger number that often comes again, and keeps it.
func keptText(n int64) string {
	place := &recent[uint64(n)*0x9e3779b97f4a7c15>>56] // Fibonacci hashing (Knuth, TAOCP 3, 6.4)
	kept := place.Load()
	if kept == nil || kept.n != n {
		kept = &number{n, strconv.FormatInt(n, 10)}
		place.Store(kept)
	}
	return kept.text
}
