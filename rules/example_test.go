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
	ctx   context.Context
	owner string
	bound int64
	print func(ctx context.Context) error
}

func (j job) Context() context.Context { return j.ctx }

// Outcomes of a job.
const (
	done = iota
	broken
)

// A printer is a door for jobs. Two jobs of an owner run at the same time, and a
// broken one costs nothing.
type printer struct{ door *rules.Door[job, int] }

func newPrinter(lim stint.Decider) printer {
	return printer{rules.New(lim, nil, rules.Rule[job, int]{
		Key:      func(j job) (stint.Key, error) { return Pages.Key(j.owner), nil },
		CostFunc: func(j job) int64 { return j.bound },
		Settle:   true, InFlight: 2, Refund: rules.OneOf(broken),
	})}
}

// run runs a job, or returns why it may not run now.
func (p printer) run(j job) (err error) {
	pass, decision, err := p.door.Begin(j)
	if err != nil {
		return err
	}
	defer pass.Leave()
	if !decision.Allowed {
		return fmt.Errorf("try again in %v", decision.RetryAfter)
	}
	outcome := broken // also if the job panics
	defer func() { pass.End(outcome) }()
	if err = j.print(pass.Context()); err == nil {
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
	p, ctx := newPrinter(lim), context.Background()
	for _, j := range []job{
		{ctx, "ada", 80, func(ctx context.Context) error {
			_, err := rules.Settle(ctx, Pages, 70)
			return err
		}},
		{ctx, "ada", 30, func(context.Context) error { return errors.New("no paper") }},
		{ctx, "ada", 40, nil},
		{ctx, "ada", 30, func(ctx context.Context) error {
			fmt.Println("left:", rules.Decisions(ctx)[0].Remaining)
			return nil
		}},
	} {
		fmt.Println(p.run(j))
	}
	// Output:
	// <nil>
	// no paper
	// try again in 6m0s
	// left: 0
	// <nil>
}
