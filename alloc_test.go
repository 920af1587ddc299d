package stint

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A decision allocates nothing, whatever it is. Like the testing package's own, it counts what other goroutines do too.
func TestDecisionsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	names := Names{perID: {Label: "PerID"}, single: {Label: "Single"}, off: {Label: "Off", Limit: Unlimited}}
	limits := limitsOf(t, names, map[Name]Limit{perID: PerHour(1_000_000), single: PerDay(1)})
	l, err := New(NewMemStore(), limits, nil)
	require.NoError(t, err)
	defer l.Close()
	a, b, c, gone, free := perID.Key("a"), perID.Key("some longer id"), perID.Key("c"), single.Key("a"), off.Key("a")
	three := []Request{{a, 1, 0}, {b, 1, 0}, {c, 1, 0}}
	denied := []Request{{a, 1, 0}, {gone, 1, 0}, {c, 1, CheckOnly}}
	ds := make([]Decision, len(three))
	for what, call := range map[string]func(){
		"Allow":             func() { l.Allow(a) },
		"Allow, denied":     func() { l.Allow(gone) },
		"Allow, off":        func() { l.Allow(free) },
		"Spend":             func() { l.Spend(b, 1) },
		"Spend, denied":     func() { l.Spend(gone, 1) },
		"Check":             func() { l.Check(b, 1) },
		"Check, denied":     func() { l.Check(gone, 1) },
		"Check, full":       func() { l.Check(perID.Key("nobody"), 1) },
		"Refund":            func() { l.Refund(b, 1) },
		"SpendAll":          func() { l.SpendAll(three...) },
		"SpendAll, denied":  func() { l.SpendAll(denied...) },
		"SpendAll, literal": func() { l.SpendAll(Request{Key: a, Cost: 1}, Request{Key: b, Cost: 1}, Request{Key: c, Cost: 1}) },
		"RefundAll":         func() { l.RefundAll(three...) },
		"SpendEach":         func() { l.SpendEach(three, ds) },
	} {
		call() // the buckets are made
		require.Zero(t, testing.AllocsPerRun(200, call), what)
	}
}

// ids returns n keys, of 24 bytes.
func benchKeys(n int) []Key {
	keys := make([]Key, n)
	for i := range keys {
		keys[i] = perID.Key(fmt.Sprintf("%024d", i))
	}
	return keys
}
