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
	e.openWith(limitsOf(e, usualNames()), newClock())
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
}
