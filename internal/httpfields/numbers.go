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

// textOf returns the text of a number. If the number often comes again, as a limit does, the text is kept.
func textOf(n int64, again bool) string {
	if n >= 0 && n <= maxNumber {
		return numbers[n]
	}
	if !again {
		return strconv.FormatInt(n, 10)
	}
	place := &recent[uint64(n)*0x9e3779b97f4a7c15>>56] // Fibonacci hashing (Knuth, TAOCP 3, 6.4)
	kept := place.Load()
	if kept == nil || kept.n != n {
		kept = &number{n, strconv.FormatInt(n, 10)}
		place.Store(kept)
	}
	return kept.text
}
