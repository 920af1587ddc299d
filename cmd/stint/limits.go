package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
)

func newLimits() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "limits",
		Short:   "Check files of limits, and rename limits",
		Example: "  stint limits check defaults.yml overrides.yml\n  stint limits set-names --db quota.db 6=OrdersPerAccount",
		Args:    noArgs,
		RunE:    needCommand,
	}
	cmd.AddCommand(newLimitsCheck(), newSetNames())
	return cmd
}

func newLimitsCheck() *cobra.Command {
	f, out := limitFlags{}, &console.Output{}
	cmd := &cobra.Command{
		Use:   "check FILE [OVERRIDES...]",
		Short: "Say whether files of limits are valid",
		Long: `Say whether files of limits are valid. Mistakes are printed with the lines that they are in, and then
the exit status is 2.

Labels and ids may be anything: a program checks its own names and formats when it loads the files. An
override may be for a limit that FILE does not have.

--json prints one object: valid, files, limits (their labels) and mistakes (an array of the lines on
stderr). No object is printed if a file cannot be read.`,
		Example: `  stint limits check defaults.yml
  stint limits check defaults.yml overrides.yml
  stint limits check --json defaults.yml`,
		Args: atLeastOne("FILE given"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.file, f.overrides, f.cmd = args[0], args[1:], cmd
			limits, numbers, err := f.load(counter())
			if errors.As(err, new(*fs.PathError)) || console.IsFailure(err) {
				return err // a file cannot be read
			}
			text := ""
			if err == nil {
				text = fmt.Sprintf("valid  %s  %s\n%s", display.Visible(strings.Join(args, " ")),
					display.Plural(len(numbers), "limit"), resets(limits, time.Now()))
			}
			found := checkedJSON{err == nil, args, slices.Sorted(maps.Keys(numbers)), console.Findings(err)}
			return errors.Join(err, out.Print(cmd.OutOrStdout(), found, text))
		},
	}
	registerJSON(cmd, out)
	return cmd
}

// resets returns the next two resets of each quota that follows the calendar, a
// line for each: of the defaults, and of overrides that differ from them.
func resets(limits *stint.Limits, now time.Time) string {
	var text strings.Builder
	at := func(t time.Time) string {
		return strings.TrimSuffix(t.Format("Mon 2006-01-02 15:04:05"), ":00") + t.Format(" MST")
	}
	names := limits.Names()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		quotas := map[stint.Limit]bool{}
		quotas[names[name].Limit] = true
		for o := range limits.Overrides(name) {
			quotas[o.Limit] = true
		}
		var lines []string
		for limit := range quotas {
			if !limit.FollowsCalendar() {
				continue
			}
			_, first := limit.PeriodAt(now)
			_, second := limit.PeriodAt(first)
			lines = append(lines, fmt.Sprintf("%s  %v  resets %s, then %s\n", display.Visible(names[name].Label), limit,
				at(first), at(second)))
		}
		slices.Sort(lines)
		text.WriteString(strings.Join(lines, ""))
	}
	return text.String()
}

type checkedJSON struct {
	Valid    bool     `json:"valid"`
	Files    []string `json:"files"`
	Limits   []string `json:"limits,omitempty"`
	Mistakes []string `json:"mistakes"`
}

func newSetNames() *cobra.Command {
	f := &dbFlags{}
	cmd := &cobra.Command{
		Use:   "set-names NUMBER=LABEL...",
		Short: "Give the limits of a file the labels that the program has for them now",
		Long: `Give the limits of a file the labels that the program has for them now. Use it if the program
cannot open the file because the labels differ.

The buckets of a number stay, and get the new label. If the file already has the label for another
number, that is an error, and nothing changes. Numbers are permanent: if the program has given a limit
another number, change the program back.`,
		Example: `  stint limits set-names --db quota.db 6=OrdersPerAccount   # 6 was NewOrdersPerAccount`,
		Args:    atLeastOne("NUMBER=LABEL given"),
		RunE:    func(cmd *cobra.Command, args []string) error { return f.setNames(cmd, args) },
	}
	f.register(cmd, dbUsage)
	return cmd
}

func (f *dbFlags) setNames(cmd *cobra.Command, args []string) error {
	names, err := parseNames(args)
	if err != nil {
		return err
	}
	store, err := f.Open(source.Changing)
	if err != nil {
		return err
	}
	before := store.Labels()
	if err = store.Relabel(names); !errors.Is(err, stint.ErrNameMismatch) {
		err = console.Failed(err)
	}
	if err := errors.Join(err, console.Failed(store.Close())); err != nil {
		return err
	}
	_, err = io.WriteString(cmd.OutOrStdout(), changes(before, names))
	return console.Failed(err)
}

func parseNames(args []string) (map[stint.Name]string, error) {
	names, labels := map[stint.Name]string{}, map[string]bool{}
	for _, arg := range args {
		number, label, _ := strings.Cut(arg, "=")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || label == "" {
			return nil, fmt.Errorf("%q: want NUMBER=LABEL, with a number from 1 to 65535: 6=NewOrdersPerAccount", arg)
		}
		if _, twice := names[stint.Name(n)]; twice {
			return nil, fmt.Errorf("number %d is given twice", n)
		}
		if labels[label] {
			return nil, fmt.Errorf("label %q is given twice: "+
				"the buckets of one number would become those of the other", label)
		}
		labels[label] = true
		names[stint.Name(n)] = label
	}
	return names, nil
}

// changes returns a line for each number: what became of its label.
func changes(before, names map[stint.Name]string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(names)) {
		what := "unchanged"
		if old, had := before[name]; !had {
			what = "new"
		} else if old != names[name] {
			what = "renamed from " + display.Printable(old)
		}
		fmt.Fprintf(&text, "%d  %s  %s\n", name, display.Printable(names[name]), what)
	}
	return text.String()
}
