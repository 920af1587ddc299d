package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
	"github.com/stint-go/stint/limitsfile"
)

// adoptCompletion makes cobra's completion command like the others: it has
// examples, and an error for a shell that it does not know.
func adoptCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"})
	completion.Example = "  stint completion bash > /etc/bash_completion.d/stint"
	completion.Args, completion.RunE = noArgs, needCommand
	for _, shell := range completion.Commands() {
		write := shell.RunE
		shell.Args, shell.RunE = noArgs, func(cmd *cobra.Command, args []string) error { return console.Failed(write(cmd, args)) }
		shell.Example = map[string]string{
			"bash":       "  source <(stint completion bash)\n  stint completion bash > /etc/bash_completion.d/stint",
			"zsh":        "  source <(stint completion zsh)\n  stint completion zsh > \"${fpath[1]}/_stint\"",
			"fish":       "  stint completion fish > ~/.config/fish/completions/stint.fish",
			"powershell": "  stint completion powershell | Out-String | Invoke-Expression",
		}[shell.Name()]
	}
}

// complete adds the completion of ids and labels to the commands below root.
func complete(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		arg := strings.TrimPrefix(strings.TrimPrefix(cmd.Use, cmd.Name()+" "), "[flags] ")
		if strings.HasPrefix(strings.TrimPrefix(arg, "["), "ID") && cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = completeID
		}
		if cmd.Flags().Lookup("name") != nil {
			_ = cmd.RegisterFlagCompletionFunc("name", completeLabel) // it fails if there is one already
		}
		complete(cmd)
	}
}

// mostCompletions is more than a person reads.
const mostCompletions = 200

// completeID returns the ids that the file has for the limit.
func completeID(cmd *cobra.Command, args []string, begun string) (ids []string, d cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault // files may follow the ID
	}
	label := defaultLabel
	if f := cmd.Flag("name"); f != nil && f.Changed {
		label = f.Value.String()
	}
	end := time.Now().Add(mostTime)
	in, err := completing(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer in.Close()
	name, ok := source.NumberOf(in.Labels, label)
	if !ok {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for b, err := range in.Buckets(name) {
		if err != nil || time.Now().After(end) || len(ids) == mostCompletions {
			break
		}
		if strings.HasPrefix(b.ID, begun) && display.Printable(b.ID) == b.ID {
			ids = append(ids, b.ID)
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// completeLabel returns the labels of the limits file or, without one, those of
// the file of buckets.
func completeLabel(cmd *cobra.Command, _ []string, begun string) (found []string, d cobra.ShellCompDirective) {
	if f := cmd.Flag("limits"); f != nil && f.Changed {
		found, _ = limitsfile.Labels(f.Value.String())
	} else if in, err := completing(cmd); err == nil {
		defer in.Close()
		names, _ := in.Named("")
		for _, name := range names {
			found = append(found, in.Labels[name])
		}
	}
	found = slices.DeleteFunc(found, func(l string) bool { return !strings.HasPrefix(l, begun) })
	slices.Sort(found)
	return found, cobra.ShellCompDirectiveNoFileComp
}

// mostTime is how long a shell waits for completions.
const mostTime = 500 * time.Millisecond

// completing opens the file that the command's flags name.
func completing(cmd *cobra.Command) (*source.Source, error) {
	db := source.File{LockTimeout: 100 * time.Millisecond} // without warnings
	if flag := cmd.Flag("db"); flag != nil {
		db.Path = flag.Value.String()
	}
	return db.View(source.Reading)
}
