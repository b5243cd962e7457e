// Command algorithms draws what each algorithm admits of the same bursty trace.
//
//	go run ./algorithms [-plot algorithms.svg]
//
// Redis is in this process and its clock is set, so that the picture is the same every time.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/ginlimit/ginlimit"
)

func main() {
	plotted := flag.String("plot", "algorithms.svg", "where the picture goes")
	flag.Parse()
	svg, err := picture()
	if err == nil {
		err = os.WriteFile(*plotted, svg, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	perMinute = 100
	seconds   = 240
)

// asked returns how many requests come in a second: one client's bursts around the end of its first
// minute, a pause, and then more than is allowed for a minute and a half.
func asked(second int) int {
	switch {
	case second == 0:
		return 1
	case second >= 54 && second < 57, second >= 61 && second < 64:
		return 40
	case second >= 130 && second < 220:
		return 3
	}
	return 0
}

// admitted returns how many requests an algorithm admits in each second.
func admitted(a ginlimit.Algorithm) ([]int, error) {
	mini := miniredis.NewMiniRedis()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	mini.SetTime(now)
	mini.ClockTTL(true)
	if err := mini.Start(); err != nil {
		return nil, err
	}
	defer mini.Close()
	rdb := redis.NewClient(&redis.Options{Addr: mini.Addr()})
	defer rdb.Close()
	limiter, err := ginlimit.NewLimiter(rdb, ginlimit.WithDenyCache(0),
		ginlimit.WithFailureMode(ginlimit.FailClosed), ginlimit.WithTimeout(10*time.Second))
	if err != nil {
		return nil, err
	}
	defer limiter.Close()
	policy, err := limiter.Policy("test", ginlimit.PerMinute(perMinute).WithAlgorithm(a))
	if err != nil {
		return nil, err
	}
	counts := make([]int, seconds)
	for second := range seconds {
		for i := range asked(second) {
			mini.SetTime(now.Add(time.Duration(second)*time.Second + time.Duration(i)*time.Second/time.Duration(asked(second))))
			r, err := policy.Allow(context.Background(), "client")
			if err != nil {
				return nil, err
			}
			counts[second] += r.Granted
		}
	}
	return counts, nil
}

// last returns the sum of the last so many counts, at each of them.
func last(n int, counts []int) []int {
	sums, sum := make([]int, len(counts)), 0
	for i := range counts {
		sum += counts[i]
		if i >= n {
			sum -= counts[i-n]
		}
		sums[i] = sum
	}
	return sums
}

// picture draws a panel for each algorithm: what was asked and admitted in each second, and
// admitted in the last minute.
func picture() ([]byte, error) {
	const (
		width, left, step = 800, 44, 3 // pixels a second
		height, gap       = 130, 44
		most              = 210
	)
	algorithms := []ginlimit.Algorithm{ginlimit.TokenBucket, ginlimit.FixedWindow, ginlimit.SlidingWindow}
	var svg bytes.Buffer
	fmt.Fprintf(&svg,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		width, len(algorithms)*(height+gap)+34)
	fmt.Fprintln(&svg, `<rect width="100%" height="100%" fill="#fff"/>`)
	for i, a := range algorithms {
		counts, err := admitted(a)
		if err != nil {
			return nil, err
		}
		bottom := (i+1)*(height+gap) - 14
		y := func(n int) int { return bottom - n*height/most }
		fmt.Fprintf(&svg, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, bottom-height-6, a)
		for _, n := range []int{0, perMinute, 2 * perMinute} {
			dashes := ""
			if n > 0 {
				dashes = ` stroke-dasharray="4 4"`
			}
			fmt.Fprintf(&svg,
				`<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#9aa5b1"%s/>`+
					`<text x="%d" y="%d" text-anchor="end" fill="#52606d">%d</text>`+"\n",
				left, y(n), left+seconds*step, y(n), dashes, left-6, y(n)+4, n)
		}
		var line bytes.Buffer
		for second, sum := range last(60, counts) {
			x := left + second*step
			if n := asked(second); n > 0 {
				fmt.Fprintf(&svg, `<rect x="%d" y="%d" width="%d" height="%d" fill="#cbd2d9"/>`, x, y(n), step, y(0)-y(n))
			}
			if n := counts[second]; n > 0 {
				fmt.Fprintf(&svg, `<rect x="%d" y="%d" width="%d" height="%d" fill="#1f6feb"/>`, x, y(n), step, y(0)-y(n))
			}
			fmt.Fprintf(&line, "%d,%d %d,%d ", x, y(sum), x+step, y(sum))
		}
		fmt.Fprintf(&svg, "\n"+`<polyline points="%s" fill="none" stroke="#d64545" stroke-width="1.5"/>`+"\n",
			bytes.TrimSpace(line.Bytes()))
		for second := 0; second <= seconds; second += 60 {
			fmt.Fprintf(&svg, `<text x="%d" y="%d" text-anchor="middle" fill="#52606d">%d s</text>`,
				left+second*step, bottom+14, second)
		}
		fmt.Fprintln(&svg)
	}
	legend := len(algorithms)*(height+gap) + 18
	for _, entry := range []struct {
		x           int
		color, text string
	}{{left, "#cbd2d9", "asked in a second"}, {left + 150, "#1f6feb", "admitted in a second"},
		{left + 320, "#d64545", "admitted in the last minute (limit: 100)"}} {
		fmt.Fprintf(&svg, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			entry.x, legend-10, entry.color, entry.x+18, legend, entry.text)
	}
	svg.WriteString("</svg>\n")
	return svg.Bytes(), nil
}
