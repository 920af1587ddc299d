package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stint-go/stint"
)

// misuse returns an error that sends the user to the command's help.
func misuse(cmd *cobra.Command, format string, args ...any) error {
	return fmt.Errorf(format+"; see %s --help", append(args, cmd.CommandPath())...)
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasSubCommands() {
		return misuse(cmd, "unknown argument %q", args[0])
	}
	cmd.SuggestionsMinimumDistance = 2 // cobra's default
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return misuse(cmd, "unknown command %q (did you mean %s?)", args[0], strings.Join(like, " or "))
	}
	return misuse(cmd, "unknown command %q", args[0])
}

var oneID = exactlyOne("ID", ": quote it if it has spaces")

func exactlyOne(what, hint string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return misuse(cmd, "one %s is needed, not %d%s", what, len(args), hint)
		}
		return nil
	}
}

func atLeastOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 || args[0] == "" {
			return misuse(cmd, "no %s", what)
		}
		return nil
	}
}

// checkID returns an error if no bucket can have the id. A stint.Single limit has
// one bucket, without an id, so it needs a label.
func checkID(id, label string) error {
	if id == "" && label != "" {
		return nil
	}
	if id == "" {
		return errors.New("an ID must not be empty")
	}
	_, err := stint.AnyID.Canonical(id)
	return err
}

func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return misuse(cmd, "want at most one %s, not %d", what, len(args))
		}
		return nil
	}
}

// apart are flags that exclude each other.
var apart = [][2]string{
	{"json", "quiet"}, {"csv", "json"}, {"csv", "quiet"}, {"for", "end"}, {"limit", "limits"}, {"scenario", "load"},
	{"try", "limit"}, {"try", "limits"}, {"try", "and"}, {"try", "name"}, {"try", "db"},
}

// together are flags that go with another, if the command has that one.
var together = [][2]string{
	{"burst", "limit"}, {"overrides", "limits"}, {"timeout", "wait"}, {"to", "repair"},
}

// checkFlags returns an error if flags contradict each other, or if one has an
// empty value, for example from a shell variable that is not set. An empty value
// must not mean the default.
func checkFlags(cmd *cobra.Command, _ []string) error {
	for _, name := range []string{"db", "for", "limit", "limits", "name", "scenario", "spend-if", "svg", "to"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return misuse(cmd, "--%s is empty: give it a value, or leave the flag out", name)
		}
	}
	if f := cmd.Flags().Lookup("lock-timeout"); f != nil {
		if timeout, err := cmd.Flags().GetDuration(f.Name); err != nil || timeout <= 0 {
			return fmt.Errorf("--%s %v: must be more than 0", f.Name, f.Value)
		}
	}
	var wrong []error
	given := cmd.Flags().Changed
	for _, pair := range apart {
		if given(pair[0]) && given(pair[1]) {
			wrong = append(wrong, misuse(cmd, "--%s and --%s exclude each other", pair[0], pair[1]))
		}
	}
	for _, pair := range together {
		with := cmd.Flags().Lookup(pair[1])
		if given(pair[0]) && with != nil && (!with.Changed || with.Value.String() == "false") {
			wrong = append(wrong, misuse(cmd, "--%s goes with --%s", pair[0], pair[1]))
		}
	}
	return errors.Join(wrong...)
}

// needCommand runs for a command that only has subcommands. It fails: otherwise
// a script that lost an argument would read the status 0 as "allowed".
func needCommand(cmd *cobra.Command, _ []string) error {
	return misuse(cmd, "no command given")
}

// badValue returns the error of a flag's value. It leaves out names of Go
// functions, such as strconv.ParseInt.
func badValue(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	want := map[string]string{
		"int": "want a whole number", "int64": "want a whole number",
		"bool": "want true or false", "duration": "want a duration such as 90s, 5m or 36h",
	}[bad.GetFlag().Value.Type()]
	if want == "" {
		return err
	}
	if _, err := strconv.ParseInt(bad.GetValue(), 0, 64); errors.Is(err, strconv.ErrRange) {
		want = "the number is too large"
	}
	return fmt.Errorf("invalid argument %q for --%s: %s", bad.GetValue(), bad.GetFlag().Name, want)
}
