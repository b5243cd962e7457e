package scripts_test

import (
	"bufio"
	"context"
	"crypto/sha1"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

var lua54 = flag.String("lua54", "", "a program that runs the scripts of these tests: Lua 5.4, instead of Redis' 5.1")

// interpreter is a Lua 5.4 that runs scripts, one at a time. Its numbers are integers or floats; Dragonfly, which
// has it too, sends a float as a text.
type interpreter struct {
	mu  sync.Mutex
	in  *bufio.Writer
	out *bufio.Reader
	ran map[string]bool // sources
}

// ranOnLua54 is set in the environment to be told of each script that was run.
const ranOnLua54 = "RAN_ON_LUA54"

func sha(source string) string { return fmt.Sprintf("%x", sha1.Sum([]byte(source))) }

// replyError is an error reply, and float a number that is not an integer.
type (
	replyError string
	float      string
)

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// startLua54 starts the interpreter, which ends with the tests.
var startLua54 = sync.OnceValue(func() *interpreter {
	cmd := exec.Command(*lua54, "lua54.lua")
	cmd.Stderr = os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		panic(err)
	}
	return &interpreter{in: bufio.NewWriter(in), out: bufio.NewReader(out), ran: map[string]bool{}}
})

// eval runs a script, whose commands a Redis gets. That a command or the reply has a float is an error.
func (l *interpreter) eval(ctx context.Context, rdb *redis.Client, source string, keys []string,
	args []any) *redis.Cmd {
	l.mu.Lock()
	defer l.mu.Unlock()
	if os.Getenv(ranOnLua54) != "" && !l.ran[source] {
		l.ran[source] = true
		fmt.Fprintln(os.Stderr, ranOnLua54, sha(source))
	}
	names, texts := []any{}, []any{}
	for _, key := range keys {
		names = append(names, key)
	}
	for _, arg := range args {
		texts = append(texts, fmt.Sprint(arg))
	}
	l.write(source)
	l.write(names)
	l.write(texts)
	var found []string
	for {
		if err := l.in.Flush(); err != nil {
			panic(err)
		}
		what := l.read()
		value := l.read()
		if hasFloat(value) {
			found = append(found, fmt.Sprintf("%s: %v", what, value))
		}
		if what == "command" {
			l.write(reply(rdb.Do(ctx, value.([]any)...)))
			continue
		}
		cmd := redis.NewCmd(ctx)
		if err, is := value.(replyError); is {
			cmd.SetErr(err)
		}
		cmd.SetVal(value)
		if found != nil {
			cmd.SetErr(fmt.Errorf("floats: %s", strings.Join(found, "; ")))
		}
		return cmd
	}
}

// reply returns what a command's reply is to a script.
func reply(cmd *redis.Cmd) any {
	value, err := cmd.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return nil
	case err != nil:
		return replyError(err.Error())
	case value == "OK" && slices.Contains([]string{"set", "lset", "ltrim"}, cmd.Name()):
		return map[string]any{"ok": value}
	}
	return value
}

// hasFloat reports whether a value is a float, or a list that has one.
func hasFloat(value any) bool {
	if list, ok := value.([]any); ok {
		return slices.ContainsFunc(list, hasFloat)
	}
	_, is := value.(float)
	return is
}

// write writes a value, as lua54.lua reads it.
func (l *interpreter) write(value any) {
	switch value := value.(type) {
	case nil:
		fmt.Fprint(l.in, "n0\n")
	case int64:
		fmt.Fprintf(l.in, "i%d\n", value)
	case string:
		fmt.Fprintf(l.in, "b%d\n%s", len(value), value)
	case replyError:
		fmt.Fprintf(l.in, "e%d\n%s", len(value), string(value))
	case map[string]any:
		fmt.Fprint(l.in, "s2\nOK")
	case []any:
		fmt.Fprintf(l.in, "l%d\n", len(value))
		for _, one := range value {
			l.write(one)
		}
	default:
		panic(fmt.Sprintf("a reply of type %T", value))
	}
}

// read reads a value that lua54.lua has written.
func (l *interpreter) read() any {
	line, err := l.out.ReadString('\n')
	if err != nil {
		panic(err)
	}
	size, err := strconv.ParseInt(line[1:len(line)-1], 10, 64)
	if err != nil {
		panic(err)
	}
	switch line[0] {
	case 'i':
		return size
	case 'l':
		list := make([]any, size)
		for i := range list {
			list[i] = l.read()
		}
		return list
	case 'n':
		return nil
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(l.out, text); err != nil {
		panic(err)
	}
	switch line[0] {
	case 'e':
		return replyError(text)
	case 'f':
		return float(text)
	}
	return string(text)
}
