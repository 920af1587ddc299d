package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
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
		shell.Args, shell.RunE = noArgs, func(cmd *cobra.Command, args []string) error { return failed(write(cmd, args)) }
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

// completeID returns the ids that the file has for the limit, unless another
// process has it open.
func completeID(cmd *cobra.Command, args []string, begun string) (ids []string, d cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault // files may follow the ID
	}
	withFile(cmd, func(store *stint.BoltStore) {
		label := defaultLabel
		if f := cmd.Flag("name"); f != nil && f.Changed {
			label = f.Value.String()
		}
		name, ok := numberOf(store, label)
		if !ok {
			return
		}
		for change, err := range store.All(name) {
			if err != nil || len(ids) == mostCompletions {
				return
			}
			if id := change.Key.ID; strings.HasPrefix(id, begun) && printable(id) == id {
				ids = append(ids, id)
			}
		}
	})
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// completeLabel returns the labels of the limits file or, without one, those of
// the file of buckets.
func completeLabel(cmd *cobra.Command, _ []string, begun string) (labels []string, d cobra.ShellCompDirective) {
	if f := cmd.Flag("limits"); f != nil && f.Changed {
		labels, _ = limitsfile.Labels(f.Value.String())
	} else {
		withFile(cmd, func(store *stint.BoltStore) {
			for _, label := range namesOf(store) {
				if _, isLine := lineOf(store, label); !isLine {
					labels = append(labels, label)
				}
			}
		})
	}
	labels = slices.DeleteFunc(labels, func(l string) bool { return !strings.HasPrefix(l, begun) })
	slices.Sort(labels)
	return labels, cobra.ShellCompDirectiveNoFileComp
}

// withFile calls f with the file that the command's flags name, if there is one
// and no other process has it open.
func withFile(cmd *cobra.Command, f func(*stint.BoltStore)) {
	db := dbFlags{cmd: cmd, lockTimeout: 100 * time.Millisecond}
	if flag := cmd.Flag("db"); flag != nil {
		db.path = flag.Value.String()
	}
	if store, err := db.openToRead(); err == nil {
		f(store.BoltStore)
		_ = store.Close() // nothing was changed
	}
}
