package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ginlimit/ginlimit/bench/internal/redisserver"
)

// behave shows what the systems do where they differ, each in a small run, and prints a table in Markdown.
func behave(ctx context.Context, server *redisserver.Server, systems []system, o options, out io.Writer) error {
	if err := server.Client.FlushAll(ctx).Err(); err != nil {
		return err
	}
	rows := []struct {
		name string
		run  func(context.Context, *redisserver.Server, system, options) (string, error)
	}{
		{"a process is killed that holds all slots of a key", killProcess},
		{"requests run on while they hold all slots of a key", runOn},
		{"requests with other keys at the last levels, beside requests that the last level denies", denyBeside},
	}
	systems = slices.DeleteFunc(slices.Clone(systems), func(s system) bool { return s.name == "sub2api with its index" })
	names, cells := []string{""}, make([][]string, len(rows))
	for i := range rows {
		cells[i] = make([]string, len(systems))
	}
	var all sync.WaitGroup
	var errs [2][]error
	for i := range 2 { // both wait
		errs[i] = make([]error, len(systems))
		for n, s := range systems {
			all.Go(func() { cells[i][n], errs[i][n] = rows[i].run(ctx, server, s, o) })
		}
	}
	all.Wait()
	for n, s := range systems {
		names = append(names, s.name)
		var err error
		cells[2][n], err = rows[2].run(ctx, server, s, o)
		if err := errors.Join(errs[0][n], errs[1][n], err); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	fmt.Fprintf(out, "\n| %s |\n|%s\n", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for i, row := range rows {
		fmt.Fprintf(out, "| %s | %s |\n", row.name, strings.Join(cells[i], " | "))
	}
	return nil
}

// oneSlot is one slot of each key at three levels. ginlimit waits for Redis however busy the machine is.
var oneSlot = limits{slots: []int{1, 1, 1}, timeout: time.Minute}

// killProcess has another process hold the only slot of a key at three levels, kills it, and waits for a slot.
func killProcess(ctx context.Context, server *redisserver.Server, s system, o options) (string, error) {
	ids := []string{"11", "12", "13"}
	if err := holdAndDie(ctx, holding{o.files, server.Addr, s.name, ids}); err != nil {
		return "", err
	}
	c, err := s.start(server.Addr, oneSlot)
	if err != nil {
		return "", err
	}
	defer c.end()
	start, next := time.Now(), newCaller(ctx, "/", ids...)
	for time.Since(start) < o.patience {
		if next.call(c) {
			return fmt.Sprintf("free after %.1f s", time.Since(start).Seconds()), nil
		}
		time.Sleep(o.patience / 50)
	}
	text := fmt.Sprintf("held after %.1f s", o.patience.Seconds())
	if s.slotKey != nil {
		left, err := server.Client.PTTL(ctx, s.slotKey(0, ids[0])).Result()
		if err != nil {
			return "", err
		}
		text += fmt.Sprintf("; the key expires %.0f s later", left.Seconds())
	}
	return text, nil
}

// runOn holds both slots of a key at three levels for longer than the system remembers slots that nobody renews, and
// counts who is admitted then. That is 10 s for ginlimit. For sub2api a slot is remembered for 2 s here, instead of 15
// minutes. For LiteLLM the process' clock goes on by a window.
func runOn(ctx context.Context, server *redisserver.Server, s system, o options) (string, error) {
	ids, ahead := []string{"21", "22", "23"}, atomic.Int64{}
	l := limits{slots: []int{2, 2, 2}, timeout: time.Minute, ttl: 2 * time.Second,
		clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}
	c, err := s.start(server.Addr, l)
	if err != nil {
		return "", err
	}
	defer c.end()
	for range l.slots[0] {
		release, ok := c.hold(ctx, ids...)
		if !ok {
			return "", errors.New("no slot to hold")
		}
		defer release()
	}
	time.Sleep(o.patience)
	ahead.Store(int64(time.Minute))
	var more int
	for range l.slots[0] {
		if release, ok := c.hold(ctx, ids...); ok {
			defer release()
			more++
		}
	}
	return fmt.Sprintf("%d more are admitted, with a limit of %d", more, l.slots[0]), nil
}

// denyBeside sends requests that only the last level denies, and requests with the same key at the first level.
func denyBeside(ctx context.Context, server *redisserver.Server, s system, o options) (string, error) {
	c, err := s.start(server.Addr, oneSlot)
	if err != nil {
		return "", err
	}
	defer c.end()
	other, err := s.start(server.Addr, oneSlot) // another process
	if err != nil {
		return "", err
	}
	defer other.end()
	release, ok := other.hold(ctx, "31", "32", "33")
	if !ok {
		return "", errors.New("no slot to hold")
	}
	defer release()
	var all sync.WaitGroup
	var stop atomic.Bool
	var wrong atomic.Int64
	for range 4 {
		all.Go(func() {
			for denied := newCaller(ctx, "/", "34", "35", "33"); !stop.Load(); {
				if denied.call(other) {
					wrong.Add(1)
				}
			}
		})
	}
	next, noticed := newCaller(ctx, "/", "34", "36", "37"), 0
	for range o.others {
		if !next.call(c) {
			noticed++
		}
	}
	stop.Store(true)
	all.Wait()
	if wrong.Load() > 0 {
		return "", errors.New("the last level admitted a request")
	}
	return fmt.Sprintf("%d of %d are denied", noticed, o.others), nil
}

// holding is what a process holds until it is killed.
type holding struct {
	Files  files
	Addr   string
	System string
	IDs    []string
}

// askedToHold has the holding of a process in its environment.
const askedToHold = "BENCH_INFLIGHT_HOLD"

// holdIfAsked is a process that holds a slot, and does not return, if the environment says so.
func holdIfAsked() {
	text := os.Getenv(askedToHold)
	if text == "" {
		return
	}
	var h holding
	err := json.Unmarshal([]byte(text), &h)
	if err == nil {
		err = h.run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// run takes a slot, prints a line, and waits to be killed. It ends with its input too.
func (h holding) run(ctx context.Context) error {
	systems, err := h.Files.systems()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(systems, func(s system) bool { return s.name == h.System })
	c, err := systems[i].start(h.Addr, oneSlot)
	if err != nil {
		return err
	}
	if _, ok := c.hold(ctx, h.IDs...); !ok {
		return errors.New("no slot to hold")
	}
	fmt.Println("held")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// holdAndDie starts a process that holds a slot, and kills it.
func holdAndDie(ctx context.Context, h holding) error {
	text, err1 := json.Marshal(h)
	program, err2 := os.Executable()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), askedToHold+"="+string(text))
	cmd.Stderr = os.Stderr
	_, err1 = cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	err = errors.Join(err, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	if err == nil && line != "held\n" {
		err = fmt.Errorf("the process printed %q", line)
	}
	return err
}
