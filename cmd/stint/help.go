package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// adoptHelp makes cobra's help command like the others: it has examples, and an
// error for a command that it does not know.
func adoptHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Example = "  stint help run\n  stint help limits check"
	help.Run, help.RunE = nil, func(_ *cobra.Command, args []string) error {
		of, unknown, err := root.Find(args)
		if err != nil || len(unknown) > 0 {
			return misuse(root, "unknown command %q", strings.Join(args, " "))
		}
		of.InitDefaultHelpFlag()
		return failed(of.Help())
	}
}
