package inflight

import "time"

// News is what Redis says of the slots that other processes hold. The zero News is none.
type News struct {
	Others int64
	Sent   time.Time // when Redis was asked
}

// learn keeps news that came with a number of granted slots, unless later ones are known.
func (r *record) learn(n News, granted int) {
	if n.Sent.After(r.news.Sent) {
		r.news, r.heldThen, r.alone = n, r.slots(), 0
	} else {
		r.heldThen += granted
	}
}

// Holders says who holds slots of a key, as far as this process knows.
type Holders struct {
	Own    int64         // slots that this process holds
	Others int64         // slots that others held, by the latest news
	Then   int64         // slots that this process held then, with those that Redis has granted since
	Alone  int64         // slots that this process has taken without Redis since then
	Age    time.Duration // of the news; from [Life] on, it says nothing any more
}

// holders says who holds slots of a key, of which there may be no record.
func (r *record) holders() Holders {
	if r == nil {
		return Holders{Age: Life}
	}
	h := Holders{int64(r.slots()), r.news.Others, int64(r.heldThen), int64(r.alone), Life}
	if !r.news.Sent.IsZero() {
		h.Age = min(Life, time.Since(r.news.Sent))
	}
	return h
}
