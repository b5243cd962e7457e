package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/ginlimit/ginlimit/contrib/admin/operate"
)

func (t *tool) doctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Look for what is wrong with Redis, and say what to do",
		Long: "Look for what is wrong with Redis, and say what to do.\n\n" +
			"It decides twice under each algorithm, by keys of its own that live a second, and looks at no more than\n" +
			"100 random keys.",
		Args: cobra.NoArgs,
		RunE: t.withOperator(func(ctx context.Context, s *session, _ []string) error {
			all := s.Examine(ctx)
			for i := range all {
				if flags, ok := flagsOf[all[i].Advice]; ok {
					all[i].Advice = flags
				}
			}
			err := t.print(all, func(w io.Writer) { printFindings(w, all) })
			if err == nil && all[0].State == operate.Problem {
				err = errProblem
			}
			return err
		}),
	}
}

// flagsOf has advice that names flags of this tool, by the advice for everybody.
var flagsOf = map[string]string{
	"give a password, and the name of an ACL user": "give a password: in the URL or in $REDIS_PASSWORD, " +
		"with --username for an ACL user",
	"it is a cluster: connect by a ClusterClient": "it is a cluster: give --cluster",
	"trust the certificate's authority":           "trust the certificate's authority by --ca",
	"check the certificates":                      "check the certificates: --ca, --cert, --key",
	"check the addresses of the Sentinels and the master's name": "check the addresses of the Sentinels " +
		"and --sentinel",
	"it is no cluster: connect by a Client": "it is no cluster: leave --cluster and further addresses out",
	"check the prefix, and whether the application runs and may publish: see its log": "check --prefix, " +
		"and whether the application runs and may publish: see its log",
}

func printFindings(w io.Writer, all []operate.Finding) {
	row(w, "STATE", "CHECK", "FOUND")
	for _, f := range all {
		found := f.Found
		if f.Server != "" {
			found = f.Server + ": " + found
		}
		row(w, f.State, f.Check, found)
		if f.Advice != "" {
			row(w, "", "", "-> "+f.Advice)
		}
	}
}
