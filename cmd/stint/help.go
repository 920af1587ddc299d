package main

import (
	"cmp"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
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
		return console.Failed(of.Help())
	}
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		const piped = 80 // columns, if the output is not a terminal
		width := cmp.Or(console.Columns(cmd.OutOrStdout()), piped)
		if _, err := io.WriteString(cmd.OutOrStdout(), helpText(cmd, width)); err != nil {
			cmd.PrintErrln(err)
		}
	})
}

// helpText returns the help of a command for a terminal of that width. A width
// of 0 means no bound.
func helpText(cmd *cobra.Command, width int) string {
	about := strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short))
	if width == 0 {
		return about + "\n\n" + cmd.UsageString()
	}
	const examples = "\uE000" // stands for the examples, because folded would break them inside quotes
	example := cmd.Example
	defer func() { cmd.Example = example }()
	cmd.Example = examples
	usage := strings.Replace(display.Folded(cmd.UsageString(), width), examples, display.FoldedCommands(example, width), 1)
	return display.Reflowed(about, width) + "\n\n" + usage
}
