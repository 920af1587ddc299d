package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/console"
	"github.com/stint-go/stint/internal/display"
	"github.com/stint-go/stint/internal/source"
	"github.com/stint-go/stint/internal/spell"
)

type holdFlags struct {
	db     dbFlags
	out    console.Output
	name   string
	period string
	end    bool
	pid    int // of the program that answered; 0 if the file did
}

func newHold() *cobra.Command {
	f := &holdFlags{}
	cmd := &cobra.Command{
		Use:   "hold [ID]",
		Short: "Hold ID's bucket, end its hold, or list the holds",
		Long: `Hold ID's bucket for a time: until the hold ends, the limit denies every request of the id, however
many tokens are left. A new hold replaces the old one, and --end ends it. The bucket keeps its tokens.
Without an ID, list all holds and when they end. With --name, list only the holds of that limit.

--json prints one object for each bucket: name, id, held_ns and until; with --end, name, id and was_held.`,
		Example: `  stint hold --name LoginsPerAddress --for 24h 10.0.0.7
  stint hold --name LoginsPerAddress --end 10.0.0.7
  stint hold`,
		Args: atMostOne("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed
			switch {
			case len(args) == 0 && (given("for") || f.end):
				return misuse(cmd, "no ID given: without one, hold lists what is held")
			case len(args) == 0:
				return f.db.Read(cmd.Context(), func(in *source.Source) error { return f.list(cmd, in) })
			case f.end:
				return f.endHold(cmd, args[0])
			case given("for"):
				return f.hold(cmd, args[0])
			}
			return misuse(cmd, "say for how long with --for 24h, or end the hold with --end")
		},
	}
	f.db.register(cmd, dbUsage)
	registerOutput(cmd, &f.out)
	cmd.Flags().StringVar(&f.name, "name", "", "the `LABEL` of the limit (default \""+defaultLabel+"\")")
	cmd.Flags().StringVar(&f.period, "for", "", "hold it for this `PERIOD`: 90s, 24h, 7d, 1w")
	cmd.Flags().BoolVar(&f.end, "end", false, "end the hold")
	cmd.ValidArgsFunction = completeID
	return cmd
}

type holdJSON struct {
	Name string `json:"name"`
	display.JSONID
	Held  time.Duration `json:"held_ns"`
	Until time.Time     `json:"until"`
	PID   int           `json:"pid,omitempty"`
}

type endedJSON struct {
	Name string `json:"name"`
	display.JSONID
	WasHeld bool `json:"was_held"`
	PID     int  `json:"pid,omitempty"`
}

const clockFormat = "2006-01-02 15:04:05 MST"

func (f *holdFlags) hold(cmd *cobra.Command, id string) error {
	period, err := spell.Period(f.period)
	if err != nil || period <= 0 {
		return fmt.Errorf("--for %q: want a period such as 90s, 24h, 7d or 1w", f.period)
	}
	_, after, now, err := f.change(id, period)
	if err != nil {
		return err
	}
	until := after.HeldUntil // no later than the last time that the file can have
	period = until.Sub(now)
	return f.out.Print(cmd.OutOrStdout(), holdJSON{f.label(), display.NewJSONID(id), period, until, f.pid},
		fmt.Sprintf("held  %s  for %s, until %s\n", display.Printable(id), display.Duration(period), until.Format(clockFormat)))
}

// endHold ends the hold of an id, and says whether there was one.
func (f *holdFlags) endHold(cmd *cobra.Command, id string) error {
	before, _, _, err := f.change(id, 0)
	if err != nil {
		return err
	}
	state := "was held until " + before.HeldUntil.Format(clockFormat)
	if before.HeldUntil.IsZero() {
		state = "was not held"
	}
	return f.out.Print(cmd.OutOrStdout(), endedJSON{f.label(), display.NewJSONID(id), !before.HeldUntil.IsZero(), f.pid},
		fmt.Sprintf("ended  %s  %s\n", display.Printable(id), state))
}

func (f *holdFlags) label() string { return cmp.Or(f.name, defaultLabel) }

// change holds the bucket of an id for a period, or ends its hold if the period is
// 0, and returns how it was before and how it is after that.
func (f *holdFlags) change(id string, period time.Duration) (before, after stint.Bucket, now time.Time, err error) {
	if err := checkID(id, f.name); err != nil {
		return before, after, now, err
	}
	to, err := source.Changing.Target(&f.db.File, f.label())
	if err != nil {
		return before, after, now, err
	}
	until := to.Now.Add(period)
	if period == 0 {
		until = time.Time{}
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	f.pid = to.PID
	err = to.Do(stint.Unlimited, id, func(l source.Decider, key stint.Key) (err error) {
		if before, err = l.Bucket(key); err != nil {
			return err
		}
		if err = l.SetHold(key, until); err == nil {
			after, err = l.Bucket(key)
		}
		return err
	})
	return before, after, to.Now, err
}

func (f *holdFlags) list(cmd *cobra.Command, in *source.Source) error {
	names := in.Labels
	held, err := source.Holds(in.Store, in.Now)
	if err != nil {
		return console.Failed(err)
	}
	if _, ok := source.NumberOf(names, f.name); !ok && f.name != "" {
		return source.NoSuchLabel(f.name)
	}
	maps.DeleteFunc(held, func(key stint.Key, _ time.Duration) bool { return f.name != "" && names[key.Name] != f.name })
	if f.out.Quiet {
		return nil
	}
	if len(held) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "stint: no holds to show")
	}
	keys := slices.SortedFunc(maps.Keys(held), func(a, b stint.Key) int {
		return cmp.Or(cmp.Compare(names[a.Name], names[b.Name]), cmp.Compare(a.ID, b.ID))
	})
	var rows [][]string
	for _, key := range keys {
		label, d := names[key.Name], held[key]
		if until := in.Now.Add(d); !f.out.JSON {
			rows = append(rows, []string{display.Printable(label), display.Printable(key.ID),
				"for " + display.Duration(d) + ", until " + until.Format(clockFormat)})
		} else if err := display.WriteJSON(cmd.OutOrStdout(), holdJSON{label, display.NewJSONID(key.ID), d, until, in.PID}); err != nil {
			return console.Failed(err)
		}
	}
	_, err = io.WriteString(cmd.OutOrStdout(), console.Folded(cmd.OutOrStdout(), display.Columns(rows)))
	return console.Failed(err)
}
