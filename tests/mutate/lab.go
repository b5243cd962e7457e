package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxMemory is how much address space the tests of a mutant may have, in kB.
const maxMemory = 6 << 20

// unchangedCPU is how much CPU time tests may take with no change.
const unchangedCPU = time.Hour

// maxOutput is how many bytes are shown of what tests print.
const maxOutput = 4 << 10

// A target is a file to break, and the stages that are run one after the other until one sees it.
type target struct {
	file   string
	stages []stage
}

// A stage is tests of one package, or of several whose directories are separated by spaces.
type stage struct {
	dir  string
	args []string
}

// each returns the stages of a target, each of one package.
func (t target) each() (all []stage) {
	for _, s := range t.stages {
		for dir := range strings.FieldsSeq(s.dir) {
			all = append(all, stage{dir, s.args})
		}
	}
	return all
}

func (s stage) name() string { return fmt.Sprint(s.dir, s.args) }

// lab compiles and runs tests.
type lab struct {
	root, dir string

	mu       sync.Mutex
	binaries map[string]*binary // by directory: the tests with no change
	took     map[string]cost    // by stage: with no change
	made     int                // files made in dir
}

// binary is the compiled tests of a package.
type binary struct {
	file string
	text []byte
}

// cost is what tests took.
type cost struct{ wall, cpu time.Duration }

// limits returns how long a mutant's tests may take that took c with no change. A loop is ended by its CPU time, which
// other programs do not change; what waits costs none, and has longer, since the machine may be busy.
func (c cost) limits() cost {
	return cost{wall: 16*c.wall + 12*time.Second, cpu: (4*c.cpu + 3*time.Second).Round(time.Second)}
}

// path returns the name of a new file.
func (l *lab) path(suffix string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	return filepath.Join(l.dir, strconv.Itoa(l.made)+suffix)
}

// prepare runs every stage of a target with no change, and takes its time.
func (l *lab) prepare(ctx context.Context, t target) error {
	for _, s := range t.each() {
		if l.binaries[s.dir] == nil {
			file := l.path(".test")
			if output, err := l.compile(ctx, s.dir, file, ""); err != nil {
				return fmt.Errorf("%s: %w\n%s", s.dir, err, output)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			l.binaries[s.dir] = &binary{file, text}
		}
		if _, ok := l.took[s.name()]; ok {
			continue
		}
		output, took, err := l.execute(ctx, s, l.binaries[s.dir].file, unchangedCPU)
		if err != nil {
			return fmt.Errorf("%s fails with no change: %w\n%s", s.name(), err, output[max(0, len(output)-maxOutput):])
		}
		l.took[s.name()] = took
	}
	return nil
}

// compile compiles the tests of a package.
func (l *lab) compile(ctx context.Context, dir, file, overlay string) ([]byte, error) {
	args := []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", file}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	command := exec.CommandContext(ctx, "go", append(args, "./"+dir)...)
	command.Dir = l.root
	command.Env = append(os.Environ(), "GOGC=off", "GOMAXPROCS=1") // several at a time, each of them short
	return command.CombinedOutput()
}

// errFailed stands for a test that failed.
var errFailed = errors.New("a test failed")

// execute runs compiled tests until the first one fails, for at most so much CPU time, in whole seconds. It ends them
// then, and when ctx is done, with all that they have started.
func (l *lab) execute(ctx context.Context, s stage, file string, cpu time.Duration) ([]byte, cost, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	args := append([]string{"-c", fmt.Sprintf(`ulimit -v %d && ulimit -t %d && exec "$0" "$@"`,
		maxMemory, cpu/time.Second), file, "-test.failfast", "-test.v"}, s.args...)
	command := exec.CommandContext(ctx, "sh", args...)
	command.Dir = filepath.Join(l.root, s.dir)
	command.Env = append(os.Environ(), "GOGC=400")
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = time.Second
	output := &firstFailure{found: func() { cancel(errFailed) }}
	command.Stdout, command.Stderr = output, output
	begin := time.Now()
	err := command.Run()
	took := cost{wall: time.Since(begin)}
	if state := command.ProcessState; state != nil {
		took.cpu = state.UserTime() + state.SystemTime()
	}
	if cause := context.Cause(ctx); errors.Is(cause, errFailed) {
		err = cause
	}
	return output.text, took, err
}

// firstFailure keeps the output of tests, and says when one has failed.
type firstFailure struct {
	text  []byte
	found func()
}

func (f *firstFailure) Write(p []byte) (int, error) {
	from := max(0, len(f.text)-len(failure))
	f.text = append(f.text, p...)
	if bytes.Contains(f.text[from:], []byte(failure)) {
		f.found()
	}
	return len(p), nil
}

const failure = "--- FAIL: "

// try returns what becomes of a mutant.
func (l *lab) try(ctx context.Context, t target, source string, m mutant) (outcome, error) {
	files := map[string]string{} // by directory
	defer func() {
		for _, file := range files {
			os.Remove(file)
		}
	}()
	make := l.makeGo
	if filepath.Ext(m.file) == ".lua" {
		make = l.makeLua
	}
	for _, s := range t.each() {
		file := files[s.dir]
		if file == "" {
			var err error
			if file, err = make(ctx, s.dir, source, m); err != nil {
				return invalid, err
			}
			if file == "" {
				return invalid, nil
			}
			files[s.dir] = file
		}
		limits := l.took[s.name()].limits()
		limited, cancel := context.WithTimeout(ctx, limits.wall)
		_, took, err := l.execute(limited, s, file, limits.cpu)
		tooLate := limited.Err() != nil || took.cpu > limits.cpu-time.Second // two clocks, which differ a little
		cancel()
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return survived, ctx.Err()
		case errors.Is(err, errFailed):
			return failed, nil
		case tooLate:
			return late, nil
		case errors.As(err, &exit) && exit.Exited():
			return failed, nil
		case err != nil: // somebody ended it, which says nothing of the mutant
			return survived, err
		}
	}
	return survived, nil
}

// makeGo compiles the tests with a mutant of a Go file, and returns "" if it does not compile.
func (l *lab) makeGo(ctx context.Context, dir, source string, m mutant) (string, error) {
	changed, overlay, file := l.path(".go"), l.path(".json"), l.path(".test")
	defer os.Remove(changed)
	defer os.Remove(overlay)
	text, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(l.root, m.file): changed}})
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(changed, []byte(m.apply(source)), 0o600),
		os.WriteFile(overlay, text, 0o600)); err != nil {
		return "", err
	}
	if output, err := l.compile(ctx, dir, file, overlay); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Exited() && !bytes.Contains(output, []byte("signal: ")) {
			return "", nil
		}
		return "", fmt.Errorf("compiling %s: %w", dir, err) // somebody ended it, which says nothing of the mutant
	}
	return file, nil
}

// makeLua writes a mutant of a script into a copy of the compiled tests, in which the script is as it was embedded. So
// nothing is compiled.
func (l *lab) makeLua(_ context.Context, dir, source string, m mutant) (string, error) {
	text := l.binaries[dir].text
	at := bytes.Index(text, []byte(source))
	if at < 0 || bytes.Contains(text[at+1:], []byte(source)) {
		return "", fmt.Errorf("%s is not embedded once in the tests of %q", m.file, dir)
	}
	changed, err := fit(source, m.apply(source))
	if err != nil {
		return "", err
	}
	text = bytes.Clone(text)
	copy(text[at:], changed)
	file := l.path(".test")
	return file, os.WriteFile(file, text, 0o700)
}
