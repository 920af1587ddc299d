package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/stint-go/stint/internal/chart"
	"github.com/stint-go/stint/internal/simulate"
)

type simulateFlags struct {
	load     []string
	scenario string
	out      chartFlags
}

func newSimulate() *cobra.Command {
	f := &simulateFlags{}
	cmd := &cobra.Command{
		Use:   "simulate LIMIT... --load LOAD",
		Short: "Draw what limits do to a load, side by side",
		Long: `Draw what limits do to a load, side by side: how many requests each admits over time. nothing is kept.
The clock is simulated, so the command takes no time.

A LIMIT is COUNT/PERIOD or 'COUNT/PERIOD burst N', and may have a name, 'NAME=LIMIT'. A large burst
makes it a token bucket, and a burst of 1 a leaky bucket.

A LOAD is one of these, and may end in "after 5s idle"; several follow each other:
  200 in 100ms         evenly, the first at the beginning and the last at the end
  300/1s for 2s        the same: 600 in 2s
  600 every 3333333ns  the first at the beginning, and the last one step before the end
  200 at once
To a limit, the second and the third are not the same: if a token takes 10ms, three steps of 3333333ns
are one nanosecond too short. The nearest miss is the shortest time by which a request came too early.

A scenario is a YAML file with a title and two lists, limits and load.

--json prints one object: requests, and limits, an array of name, limit, allowed, denied,
nearest_miss_ns (null without a denial).`,
		Example: `  stint simulate 'token bucket=100/1s burst 200' 'leaky bucket=100/1s burst 1' \
    --load '200 in 100ms after 5s idle'
  stint simulate '100/1s burst 200' '100/1s burst 1' --load '300/1s for 2s' --svg overload.svg
  stint simulate --scenario black-friday.yml --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.read(cmd, args)
			if err != nil {
				return err
			}
			if err := s.Run(); err != nil {
				return err
			}
			return f.out.print(cmd, s.SVG, s.Summary(), s.Text)
		},
	}
	cmd.Flags().StringArrayVar(&f.load, "load", nil, "a `LOAD`; may be repeated")
	cmd.Flags().StringVar(&f.scenario, "scenario", "", "a YAML `FILE` with title, limits and load")
	f.out.register(cmd)
	_ = cmd.MarkFlagFilename("scenario", "yml", "yaml")
	return cmd
}

func (f *simulateFlags) read(cmd *cobra.Command, args []string) (*simulate.Simulation, error) {
	if err := f.out.misused(cmd); err != nil {
		return nil, err
	}
	in := &simulate.Scenario{Limits: args, Load: f.load}
	if f.scenario != "" {
		if len(args) > 0 {
			return nil, misuse(cmd, "give limits in a scenario or as arguments, not both")
		}
		content, err := os.ReadFile(f.scenario)
		if err != nil {
			return nil, err
		}
		if in, err = simulate.ReadScenario(content); err != nil {
			return nil, fmt.Errorf("%s: %w", f.scenario, err)
		}
	}
	switch {
	case len(in.Limits) == 0:
		return nil, misuse(cmd, "no LIMIT given")
	case len(in.Limits) > chart.MostCurves:
		return nil, misuse(cmd, "%d limits: a chart can show at most %d",
			len(in.Limits), chart.MostCurves)
	case len(in.Load) == 0:
		return nil, misuse(cmd, "no --load given")
	}
	return simulate.New(in)
}
