package rules_test

import (
	"context"
	"fmt"
	"time"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// Wrong passwords of an address: quickly one after the other, and in a day.
const (
	Failures      stint.Name = 1
	FailuresInDay stint.Name = 2
)

// A login is an attempt from an address.
type login struct{ address string }

func (login) Context() context.Context { return context.Background() }

func isWrong(passed bool) bool { return !passed }

func by(name stint.Name) rules.KeyFunc[login] {
	return func(l login) (stint.Key, error) { return name.Key(l.address), nil }
}

// Five wrong passwords in ten minutes lock an address out for five minutes, and
// twenty in a day lock it out for a day.
func ExampleRule_lockOut() {
	limits, err := stint.NewLimits(stint.Names{
		Failures:      {Label: "failures", Limit: stint.Limit{Burst: 5, Count: 5, Period: 10 * time.Minute}},
		FailuresInDay: {Label: "failures in a day", Limit: stint.PerDay(20)},
	})
	if err != nil {
		panic(err)
	}
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	lim, err := stint.New(stint.NewMemStore(), limits, &stint.Options{Now: func() time.Time { return now }})
	if err != nil {
		panic(err)
	}
	defer lim.Close()

	door := rules.New(lim, nil,
		rules.Rule[login, bool]{Key: by(Failures), Count: isWrong, LockOut: 5 * time.Minute},
		rules.Rule[login, bool]{Key: by(FailuresInDay), Count: isWrong, LockOut: 24 * time.Hour},
	)
	wrong := 0
	for wrong < 20 {
		pass, decision, err := door.Begin(login{"203.0.113.7"})
		if err != nil {
			panic(err)
		}
		if decision.Allowed {
			wrong++
			pass.End(false)
		} else {
			fmt.Printf("after %d wrong passwords: locked out for %v\n", wrong, decision.RetryAfter)
			now = now.Add(decision.RetryAfter)
		}
		pass.Leave()
	}
	b, err := lim.Bucket(FailuresInDay.Key("203.0.113.7"))
	if err != nil {
		panic(err)
	}
	fmt.Printf("after %d wrong passwords: locked out for %v\n", wrong, b.HeldUntil.Sub(now))
	// Output:
	// after 5 wrong passwords: locked out for 5m0s
	// after 7 wrong passwords: locked out for 5m0s
	// after 10 wrong passwords: locked out for 5m0s
	// after 12 wrong passwords: locked out for 5m0s
	// after 15 wrong passwords: locked out for 5m0s
	// after 17 wrong passwords: locked out for 5m0s
	// after 20 wrong passwords: locked out for 24h0m0s
}
