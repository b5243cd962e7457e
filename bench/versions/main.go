// Command versions compares what CPU a decision needs in two versions of this library: in the process,
// with Gin, and in its Redis.
//
// Both versions and a second process of this one take turns in short rounds. What this one and its
// twin differ by is chance.
//
//	go run ./versions [-base commit] [-rounds 9] [-only regexp] [-check]
package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ginlimit/ginlimit/bench/internal/spread"
)

func main() {
	base := flag.String("base", "", "the other version, a commit; the last release if empty")
	rounds := flag.Int("rounds", 9, "rounds in each situation")
	only := flag.String("only", "", "regular expression for the situations")
	check := flag.Bool("check", false, "fail if this version needs more CPU than the other, beyond chance")
	flag.Parse()
	if err := run(context.Background(), *base, *only, *rounds, *check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, base, only string, rounds int, check bool) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	dir, err := os.MkdirTemp("", "versions")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if base == "" {
		if base = lastRelease(ctx); base == "" {
			fmt.Println("no release to compare with: name a commit by -base")
			return nil
		}
	}
	fmt.Printf("CPU of this version and of %s\n\n", base)
	old, this, err := build(ctx, dir, base)
	if err != nil {
		return err
	}
	var all [3]*contestant
	for i, program := range []string{old, this, this} {
		if all[i], err = start(ctx, program); err != nil {
			return err
		}
		defer all[i].close()
	}
	fmt.Println("| | its µs | µs | ÷ its | ÷ its twin's | allocations |")
	fmt.Println("|---|---|---|---|---|---|")
	worse := 0
	for _, s := range situations {
		if !pattern.MatchString(s.name) {
			continue
		}
		c, err := s.compare(ctx, all, rounds)
		if err == nil && check && c.worse() { // chance rarely strikes twice
			fmt.Printf("%s: %s of %s, once more\n", s.name, c.ratio.Text(2), base)
			c, err = s.compare(ctx, all, 2*rounds)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Printf("| %s | %s | %s | **%s** | %s | %.1f |\n", s.name,
			c.old.Middle(2), c.this.Middle(2), c.ratio.Text(2), c.chance.Text(2), c.allocations.Median)
		if c.worse() {
			worse++
		}
	}
	if check && worse > 0 {
		return fmt.Errorf("%d situations need more CPU than in %s", worse, base)
	}
	return nil
}

// lastRelease returns the last tag of the root module, or nothing.
func lastRelease(ctx context.Context) string {
	tag, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--abbrev=0", "--match", "v*").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(tag))
}

// build builds the program with the library of a commit and with this one. Both have the dependencies
// of this module.
func build(ctx context.Context, dir, base string) (old, this string, err error) {
	archive, err := command(ctx, nil, "git", "-C", "..", "archive", base, "--", "*.go", "*.lua", "*go.mod", "go.sum")
	if err != nil {
		return "", "", fmt.Errorf("%w; a shallow clone has no %s: git fetch --unshallow", err, base)
	}
	library, mod := filepath.Join(dir, "library"), filepath.Join(dir, "go.mod")
	old, this = filepath.Join(dir, "old"), filepath.Join(dir, "this")
	if err := os.Mkdir(library, 0o700); err != nil {
		return "", "", err
	}
	if _, err := command(ctx, bytes.NewReader(archive), "tar", "-x", "-C", library); err != nil {
		return "", "", err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
		}
		if err != nil {
			return "", "", err
		}
	}
	const module = "github.com/ginlimit/ginlimit"
	for _, args := range [][]string{
		{"mod", "edit", "-replace", module + "=" + library, mod},
		{"build", "-mod=mod", "-modfile", mod, "-o", old, "./versions/process"},
		{"build", "-o", this, "./versions/process"},
	} {
		if _, err := command(ctx, nil, "go", args...); err != nil {
			return "", "", err
		}
	}
	return old, this, nil
}

// command runs a command of its own environment, without what its caller has set for Go, and returns its output.
func command(ctx context.Context, in io.Reader, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, text bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &text
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, cmp.Or(args...), err, bytes.TrimSpace(text.Bytes()))
	}
	return out.Bytes(), nil
}

// comparison is what came of a situation: CPU for each decision in µs, and ratios of a round.
type comparison struct{ old, this, ratio, chance, allocations spread.Spread }

// minWorse is how much more a version must need at least. On a machine that is shared with others, what
// twins differ by in a few short rounds says little about the next ones.
const minWorse = 1.25

// worse reports whether this version needs more CPU, beyond what the twins differ by: in three of four
// rounds by more than in three of four between the twins.
func (c comparison) worse() bool { return c.ratio.Low > max(c.chance.High, 1/c.chance.Low, minWorse) }

// compare has the old version, this one and its twin run by turns.
func (s situation) compare(ctx context.Context, all [3]*contestant, rounds int) (comparison, error) {
	var cpu [3][]float64
	var ratios, chances, allocations []float64
	for round := range rounds + 1 {
		var now [3]float64
		for _, i := range rand.Perm(len(all)) {
			used, made, err := all[i].run(ctx, s)
			if err != nil {
				return comparison{}, err
			}
			now[i] = used
			if i > 0 && round > 0 {
				allocations = append(allocations, made)
			}
		}
		if round == 0 { // it warms up
			continue
		}
		for i := range all {
			cpu[i] = append(cpu[i], now[i])
		}
		ratios = append(ratios, now[1]/now[0], now[2]/now[0])
		chances = append(chances, now[2]/now[1])
	}
	return comparison{
		spread.Of(cpu[0]), spread.Of(append(cpu[1], cpu[2]...)),
		spread.Of(ratios), spread.Of(chances), spread.Of(allocations),
	}, nil
}
