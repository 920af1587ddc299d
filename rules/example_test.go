package rules_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// Pages are what the jobs of an owner may print in an hour.
const Pages stint.Name = 1

// A job prints at most bound pages, and reports with rules.Settle how many it
// did.
type job struct {
	owner string
	bound int64
	print func(ctx context.Context) error
}

// Outcomes of a job.
const (
	done = iota
	broken
)

// A printer is a door for jobs. Two jobs of an owner run at the same time, and a
// broken one costs nothing.
type printer struct{ door *rules.Door }

func newPrinter(lim stint.Decider) printer {
	return printer{rules.New(lim, rules.Rule{
		Settle: true, InFlight: 2, Refund: func(outcome int) bool { return outcome == broken },
	})}
}

// run runs a job, or returns why it may not run now.
func (p printer) run(ctx context.Context, j job) (err error) {
	pass, decision, err := p.door.Begin(ctx, nil, rules.Ask{Key: Pages.Key(j.owner), Cost: j.bound})
	switch {
	case err != nil:
		return err
	case !decision.Allowed:
		return fmt.Errorf("try again in %v", decision.RetryAfter)
	}
	defer pass.Leave()
	outcome := broken // also if the job panics
	defer func() { pass.End(outcome, func(err error) { fmt.Println(err) }) }()
	if err = j.print(pass); err == nil {
		outcome = done
	}
	return err
}

// A door for something that is neither HTTP nor gRPC: a runner of jobs.
func ExampleDoor() {
	limits, err := stint.NewLimits(stint.Names{Pages: {Label: "pages", Limit: stint.PerHour(100)}})
	if err != nil {
		panic(err)
	}
	now := time.Now()
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
	if err != nil {
		panic(err)
	}
	defer lim.Close()
	p := newPrinter(lim)
	for _, j := range []job{
		{"ada", 80, func(ctx context.Context) error {
			_, err := rules.Settle(ctx, Pages, 70)
			return err
		}},
		{"ada", 30, func(context.Context) error { return errors.New("no paper") }},
		{"ada", 40, nil},
		{"ada", 30, func(ctx context.Context) error {
			fmt.Println("left:", rules.Decisions(ctx)[0].Remaining)
			return nil
		}},
	} {
		fmt.Println(p.run(context.Background(), j))
	}
	// Output:
	// <nil>
	// no paper
	// try again in 6m0s
	// left: 0
	// <nil>
}
