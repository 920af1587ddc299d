package main

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/display"
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

// completeID returns the ids that the file has for the limit.
func completeID(cmd *cobra.Command, args []string, begun string) (ids []string, d cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault // files may follow the ID
	}
	label := defaultLabel
	if f := cmd.Flag("name"); f != nil && f.Changed {
		label = f.Value.String()
	}
	labels, idsOf, done := completer(cmd)
	defer done()
	for name, l := range labels {
		if l != label {
			continue
		}
		for id := range idsOf(name) {
			if strings.HasPrefix(id, begun) && display.Printable(id) == id {
				ids = append(ids, id)
			}
			if len(ids) == mostCompletions {
				break
			}
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// completeLabel returns the labels of the limits file or, without one, those of
// the file of buckets.
func completeLabel(cmd *cobra.Command, _ []string, begun string) (found []string, d cobra.ShellCompDirective) {
	if f := cmd.Flag("limits"); f != nil && f.Changed {
		found, _ = limitsfile.Labels(f.Value.String())
	} else {
		labels, _, done := completer(cmd)
		defer done()
		for _, label := range labels {
			if limit, isLine := strings.CutSuffix(label, lineSuffix); !isLine || !hasLabel(labels, limit) {
				found = append(found, label)
			}
		}
	}
	found = slices.DeleteFunc(found, func(l string) bool { return !strings.HasPrefix(l, begun) })
	slices.Sort(found)
	return found, cobra.ShellCompDirectiveNoFileComp
}

func hasLabel(labels map[stint.Name]string, label string) bool {
	return slices.Contains(slices.Collect(maps.Values(labels)), label)
}

// mostTime is how long a shell waits for completions.
const mostTime = 500 * time.Millisecond

// completer returns the labels of the file that the command's flags name, and a
// function that finds the ids of each. They come from the program that has it
// open, if there is one. Without a file there are none.
func completer(cmd *cobra.Command) (
	labels map[stint.Name]string, idsOf func(stint.Name) iter.Seq[string], done func() error) {
	db := dbFlags{cmd: cmd, lockTimeout: 100 * time.Millisecond}
	if flag := cmd.Flag("db"); flag != nil {
		db.path = flag.Value.String()
	}
	end := time.Now().Add(mostTime)
	store, owner, err := openOrAsk(&db, (*dbFlags).openToRead)
	switch {
	case err != nil:
		return nil, nil, func() error { return nil }
	case owner != nil:
		return labelsOf(owner), func(name stint.Name) iter.Seq[string] {
			return func(yield func(string) bool) {
				for b, err := range owner.Buckets(name) {
					if err != nil || time.Now().After(end) || !yield(b.Key.ID) {
						return
					}
				}
			}
		}, owner.Close
	}
	return store.Labels(), func(name stint.Name) iter.Seq[string] {
		return func(yield func(string) bool) {
			for change, err := range store.All(name) {
				if err != nil || time.Now().After(end) || !yield(change.Key.ID) {
					return
				}
			}
		}
	}, store.Close
}
