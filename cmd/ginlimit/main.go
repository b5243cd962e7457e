// Command ginlimit shows and changes the limits of a running application: see its README.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // of calendar quotas, where the system has none

	"github.com/mattn/go-isatty"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ginlimit/ginlimit"
	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitDenied = 3
)

const exitCodes = `Exit codes: 0 done, 1 failed or a problem found, 2 wrong use, 3 the client is denied (status).`

// tool is one run of the command.
type tool struct {
	in       io.Reader
	out      io.Writer
	errs     io.Writer
	env      func(string) string
	terminal bool // in and out are a person's

	server  server
	prefix  string
	secret  string // the file that has it
	timeout time.Duration
	json    bool
	yes     bool
	helped  bool // somebody has asked for help beside arguments, perhaps a client whose name is --help
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t := &tool{in: os.Stdin, out: os.Stdout, errs: os.Stderr, env: os.Getenv,
		terminal: isatty.IsTerminal(os.Stdin.Fd()) && isatty.IsTerminal(os.Stdout.Fd())}
	redis.SetLogger(quiet{})
	os.Exit(t.run(ctx, os.Args[1:]))
}

// quiet drops what go-redis logs: errors say it.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// usageError is a mistake of whoever runs the command.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errDenied says that a client is denied, and errProblem that the output names a problem.
var errDenied, errProblem = errors.New("denied"), errors.New("a problem")

// run runs the command and returns its exit code.
func (t *tool) run(ctx context.Context, args []string) int {
	root := t.root()
	root.SetArgs(withTwoDashes(root, args))
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil && t.helped:
		return exitUsage
	case err == nil:
		return exitOK
	case errors.Is(err, errDenied):
		return exitDenied
	case errors.Is(err, errProblem):
		return exitFailed
	}
	err = hinted(err)
	fmt.Fprintln(t.errs, "ginlimit:", escaped(strings.TrimPrefix(withoutURLs(err.Error()), "ginlimit: ")))
	if errors.As(err, new(usageError)) || errors.As(err, new(*operate.Fault)) || errors.Is(err, ginlimit.ErrInvalidArgument) {
		return exitUsage
	}
	return exitFailed
}

// withTwoDashes returns arguments with flags as -json, which Go's own tools have, as --json.
func withTwoDashes(root *cobra.Command, args []string) []string {
	takesValue := map[string]bool{"help": false, "version": false, "n": true}
	learn := func(f *pflag.Flag) { takesValue[f.Name] = f.NoOptDefVal == "" }
	for _, c := range append(root.Commands(), root) {
		c.Flags().VisitAll(learn)
		c.PersistentFlags().VisitAll(learn)
	}
	args = append([]string{}, args...) // not nil: cobra would take the arguments of the process
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		text, isFlag := strings.CutPrefix(args[i], "-")
		name, _, hasValue := strings.Cut(strings.TrimPrefix(text, "-"), "=")
		value, isKnown := takesValue[name]
		if isFlag && isKnown && len(name) > 1 && !strings.HasPrefix(text, "-") {
			args[i] = "-" + args[i]
		}
		if isFlag && isKnown && value && !hasValue {
			i++ // whatever it is
		}
	}
	return args
}

// root returns the command with all its subcommands.
func (t *tool) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "ginlimit",
		Short: "Show and change the limits of a running application",
		Long: "Show and change the limits of a running application.\n\n" + exitCodes + "\n\n" +
			"What changes something asks first on a terminal; elsewhere it needs --yes.",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	help := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		help(c, args)
		t.helped = c.Flags().NArg() > 0
	})
	root.SetIn(t.in)
	root.SetOut(t.out)
	root.SetErr(t.errs)
	flags := root.PersistentFlags()
	t.server.flags(flags)
	flags.StringVar(&t.prefix, "prefix", ginlimit.DefaultPrefix, "prefix of the keys, as WithPrefix")
	flags.StringVar(&t.secret, "key-secret-file", "",
		"file with the secret of WithKeySecret; default $GINLIMIT_KEY_SECRET")
	flags.DurationVar(&t.timeout, "timeout", 5*time.Second, "how long to wait for Redis")
	flags.BoolVar(&t.json, "json", false, "print JSON")
	flags.BoolVarP(&t.yes, "yes", "y", false, "do not ask")
	root.AddCommand(t.policies(), t.status(), t.slots(), t.top(), t.block(), t.reset(), t.override(),
		t.overrideAll(), t.overrides(), t.apply(), t.doctor())
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "rpad .Name .NamePadding", "rpad .NameAndAliases 14"))
	setArgs(root)
	t.completePolicies(root)
	return root
}

// setArgs makes a mistake in arguments and flags a [usageError].
func setArgs(c *cobra.Command) {
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		text := operate.WithoutSecrets(err.Error())
		if strings.Contains(c.Use, "CLIENT") {
			text += "; a client that begins with - comes after --"
		}
		return usage("%s", text)
	})
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usage("%s\nusage: %s", operate.WithoutSecrets(err.Error()), c.UseLine())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		setArgs(sub)
	}
}

// completePolicies has the shell complete the names of policies.
func (t *tool) completePolicies(root *cobra.Command) {
	for _, c := range root.Commands() {
		if !strings.Contains(c.Use, "POLICY") {
			continue
		}
		c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if len(args) == 0 {
				t.timeout = min(t.timeout, time.Second)
				_ = t.withOperator(func(ctx context.Context, s *session, _ []string) error {
					all, err := s.Policies(ctx)
					for _, p := range all {
						if word(p.Name) == p.Name { // a shell would read others in another way
							names = append(names, p.Name)
						}
					}
					return err
				})(c, nil)
			}
			return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// version returns the version that was installed.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
