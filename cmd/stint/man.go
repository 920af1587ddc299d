package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/wholefile"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the manual pages, one for each command",
		Long:  `Write the manual pages, one for each command, into a directory. It is made if it is not there.`,
		Example: `  stint man /usr/local/share/man/man1
  stint man . && man ./stint-run.1`,
		Args: exactlyOne("DIRECTORY", ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return console.Failed(err)
			}
			pages := 0
			var write func(c *cobra.Command) error
			write = func(c *cobra.Command) error {
				if c.IsAdditionalHelpTopicCommand() || c.Hidden || c.Name() == "completion" {
					return nil
				}
				pages++
				for _, sub := range c.Commands() {
					if err := write(sub); err != nil {
						return err
					}
				}
				return wholefile.Replace(filepath.Join(args[0], pageOf(c)+".1"), []byte(manPage(c)))
			}
			if err := write(cmd.Root()); err != nil {
				return console.Failed(err)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "wrote  %s  %s\n", display.Visible(args[0]), display.Plural(pages, "page"))
			return console.Failed(err)
		},
	}
}

// pageOf returns the name of a command's page: "stint-limits-check".
func pageOf(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage returns a command's page, for man(7).
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	section := func(name string) { fmt.Fprintf(&b, ".SH %s\n", name) }
	fmt.Fprintf(&b, ".TH %s 1 \"\" %s \"Rate limits that last\"\n",
		strings.ToUpper(pageOf(cmd)), roffQuoted("stint "+thisBuild().Version))
	section("NAME")
	fmt.Fprintf(&b, "%s \\- %s\n", roff(pageOf(cmd)), roff(cmd.Short))
	section("SYNOPSIS")
	fmt.Fprintf(&b, ".B %s\n", roff(cmd.UseLine()))
	section("DESCRIPTION")
	roffText(&b, cmd.Long)
	var seeAlso []string
	if cmd.HasParent() {
		seeAlso = append(seeAlso, pageOf(cmd.Parent()))
	}
	if cmd.HasAvailableSubCommands() {
		section("COMMANDS")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() && sub.Name() != "completion" {
				seeAlso = append(seeAlso, pageOf(sub))
				fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(sub.Name()), roff(sub.Short))
			}
		}
	}
	section("OPTIONS")
	cmd.InitDefaultHelpFlag()
	roffBlock(&b, strings.TrimRight(cmd.NonInheritedFlags().FlagUsagesWrapped(72), "\n"))
	section("EXIT STATUS")
	for _, s := range console.ExitStatuses {
		fmt.Fprintf(&b, ".TP\n.B %d\n%s\n", s.Status, roff(s.Meaning))
	}
	section("EXAMPLES")
	roffBlock(&b, cmd.Example)
	if len(seeAlso) > 0 {
		section("SEE ALSO")
		for i, page := range seeAlso {
			seeAlso[i] = fmt.Sprintf("\\fB%s\\fP(1)", roff(page))
		}
		fmt.Fprintln(&b, strings.Join(seeAlso, ", "))
	}
	return b.String()
}

// roffText writes paragraphs as paragraphs, and indented lines unchanged.
func roffText(b *strings.Builder, text string) {
	block := ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") {
			block += line
			continue
		}
		roffBlock(b, block)
		block = ""
		b.WriteString(cmp.Or(roff(strings.TrimSuffix(line, "\n")), ".PP") + "\n")
	}
	roffBlock(b, block)
}

// roffBlock writes lines unchanged, if there are any.
func roffBlock(b *strings.Builder, text string) {
	if text == "" {
		return
	}
	b.WriteString(".PP\n.nf\n")
	for line := range strings.Lines(text) {
		b.WriteString(roff(strings.TrimSuffix(line, "\n")) + "\n")
	}
	b.WriteString(".fi\n.PP\n")
}

// roff escapes a line for man(7).
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(line)
	if strings.HasPrefix(line, ".") {
		line = `\&` + line
	}
	return line
}

func roffQuoted(s string) string { return `"` + strings.ReplaceAll(roff(s), `"`, `\(dq`) + `"` }
