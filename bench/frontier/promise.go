package frontier

import "time"

// promise is what a design says that it admits at most. Each is judged by its own.
type promise int

const (
	eachWindow promise = iota // the limit, in each window that begins with a second
	anyWindow                 // the limit, in any time as long as a window
	bucket                    // in any time a full bucket, and what flows into one meanwhile
)

func (p promise) String() string { return [...]string{"each window", "any window", "bucket"}[p] }

// over returns by how many requests most were admitted beyond a promise, at times in order.
func (p promise) over(admitted []time.Duration) int {
	return max(0, p.largest(admitted)-limit)
}

// largest returns the most that was admitted within a window; of a bucket, the most that it had to hold.
func (p promise) largest(admitted []time.Duration) (largest int) {
	first, level, last := 0, 0., time.Duration(0)
	for i, at := range admitted {
		switch p {
		case eachWindow:
			for admitted[first]/window < at/window {
				first++
			}
			largest = max(largest, i-first+1)
		case anyWindow:
			for admitted[first] <= at-window {
				first++
			}
			largest = max(largest, i-first+1)
		case bucket:
			level = max(0, level-(at-last).Seconds()/window.Seconds()*limit) + 1
			largest, last = max(largest, int(level)), at
		}
	}
	return largest
}

// ideal returns how many requests somebody would admit who sees all of them and keeps the promise, with a bucket of a
// burst.
func (p promise) ideal(requests []request, burst int) int {
	var admitted []time.Duration
	first, level, last := 0, 0., time.Duration(0)
	for _, r := range requests {
		switch p {
		case eachWindow:
			for first < len(admitted) && admitted[first]/window < r.at/window {
				first++
			}
		case anyWindow:
			for first < len(admitted) && admitted[first] <= r.at-window {
				first++
			}
		case bucket:
			level = max(0, level-(r.at-last).Seconds()/window.Seconds()*limit)
			last = r.at
			if level+1 <= float64(burst) {
				level++
				admitted = append(admitted, r.at)
			}
			continue
		}
		if len(admitted)-first < limit {
			admitted = append(admitted, r.at)
		}
	}
	return len(admitted)
}
