package decidertest

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/rules"
)

// message is what passes a door of package rules.
type message struct{ ctx context.Context }

func (m message) Context() context.Context { return m.ctx }

// Stats after a group that was denied: what was taken back counts as nothing, and
// the bucket that denied counts once.
func caseStats(e *env) {
	names := usualNames()
	if e.subject.has(Shares) {
		names = shareNames()
		names[class+10] = stint.NameSpec{Label: "second class", Limit: stint.PerMinute(1), Parent: total}
	}
	e.openWith(limitsOf(e, names), newClock())
	m := method[interface{ Stats() stint.Stats }](e)
	counted := func(name stint.Name) [3]int64 {
		l := m.Stats().Limits[name]
		return [3]int64{l.Allowed, l.Denied, l.Errors}
	}
	of := func(key stint.Key) rules.Rule[message, int] {
		return rules.Rule[message, int]{Key: func(message) (stint.Key, error) { return key, nil }}
	}
	spend := func(a, b stint.Key) bool {
		p, d, err := rules.New(e.Limiter, nil, of(a), of(b)).Begin(message{e.Context()})
		require.NoError(e, err)
		p.Leave()
		return d.Allowed
	}
	for range 6 {
		spend(plain.Key("a"), other.Key("a"))
	}
	require.Equal(e, [3]int64{4, 0, 0}, counted(plain))
	require.Equal(e, [3]int64{4, 2, 0}, counted(other))
	if !e.subject.has(Shares) {
		return
	}
	for range 5 {
		spend(class.Key("a"), (class + 10).Key("a"))
	}
	require.Equal(e, [3]int64{1, 0, 0}, counted(class))
	require.Equal(e, [3]int64{1, 4, 0}, counted(class+10))
	require.Equal(e, [3]int64{2, 0, 0}, counted(total))
	require.True(e, spend(class.Key("a"), total.Key("")))
	require.True(e, e.spend(class.Key("b"), 1).Allowed)
	require.EqualValues(e, 1, e.left(total.Key("")))
	before, inTotal := counted(class), counted(total)
	require.False(e, spend(class.Key("a"), class.Key("b")), "the total has too few for both")
	before[1]++ // that of b, as for a spend of b alone
	require.Equal(e, before, counted(class))
	inTotal[1]++
	require.Equal(e, inTotal, counted(total))
	require.EqualValues(e, 1, e.left(total.Key("")))
}
