package rules_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/internal/rulestest"
	"github.com/stint-go/stint/rules"
)

// TestRules runs the rules with every kind of limit, without a protocol.
func TestRules(t *testing.T) {
	t.Parallel()
	rulestest.Run(t, rulestest.Direct, rulestest.Limiter())
}

// BenchmarkBegin measures a request that does nothing.
func BenchmarkBegin(b *testing.B) {
	limits, err := stint.NewLimits(stint.Names{1: {Label: "a", Limit: stint.PerSecond(1e9)}})
	require.NoError(b, err)
	lim, err := stint.New(stint.NewMemStore(), limits, nil)
	require.NoError(b, err)
	defer lim.Close()
	d := rules.New(lim, nil, rules.Rule[job, int]{
		Key: func(j job) (stint.Key, error) { return stint.Name(1).Key(j.owner), nil }})
	j := job{ctx: b.Context(), owner: "x"}
	b.ReportAllocs()
	for b.Loop() {
		p, _, err := d.Begin(j)
		if err != nil {
			b.Fatal(err)
		}
		p.End(0)
		p.Leave()
	}
}
