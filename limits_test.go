package stint

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var resolveNames = Names{
	1: {Label: "PerIP", ID: IPAddress},
	2: {Label: "PerAccountAndHost", ID: Tuple(RegID, AnyOf(Hostname, IPAddress)), Override: RegID},
	3: {Label: "Everyone", ID: Shared},
	4: {Label: "Off"},
	5: {Label: "OnlyOverridden"},
	6: {Label: "ThreeParts", ID: Tuple(RegID, Hostname, AnyID), Override: Tuple(RegID, Hostname)},
}

func makeLimits(t testing.TB) *Limits {
	ls, err := NewLimits(resolveNames,
		map[Name]Limit{1: PerSecond(10), 2: PerMinute(2), 3: PerHour(3), 6: PerSecond(10)},
		map[Name][]Override{
			1: {{IDs: []OverrideID{{"::ffff:10.0.0.2", "mapped"}, {ID: "10.0.0.3"}}, Limit: PerSecond(20)}},
			2: {{IDs: []OverrideID{{ID: "1234"}}, Limit: PerMinute(20)}},
			5: {{IDs: []OverrideID{{"some\"one", "a, b"}}, Limit: PerDay(5).WithBurst(7)}},
			6: {{IDs: []OverrideID{{ID: "1:A.example"}}, Limit: PerSecond(20)}},
		})
	require.NoError(t, err)
	return ls
}

func TestResolve(t *testing.T) {
	ls := makeLimits(t)
	long := strings.Repeat("x", 512)
	for _, tc := range []struct {
		key  Key
		want Limit // zero: off
		err  error
	}{
		{Key{1, "10.0.0.1"}, PerSecond(10), nil},
		{Key{1, "10.0.0.2"}, PerSecond(20), nil},
		{Key{1, "10.0.0.3"}, PerSecond(20), nil},
		{Key{1, "::ffff:10.0.0.2"}, PerSecond(10), nil}, // taken as is
		{Key{1, ""}, Limit{}, ErrInvalidID},
		{Key{2, "1234:example.com"}, PerMinute(20), nil},
		{Key{2, "1234:2001:db8::1"}, PerMinute(20), nil},
		{Key{2, "1234:"}, PerMinute(20), nil},
		{Key{2, "1234"}, PerMinute(2), nil}, // there is no part that it leads
		{Key{2, "123:4:example.com"}, PerMinute(2), nil},
		{Key{2, "12345:example.com"}, PerMinute(2), nil},
		{Key{2, ":1234"}, PerMinute(2), nil},
		{Key{3, ""}, PerHour(3), nil},
		{Key{3, "x"}, Limit{}, ErrInvalidID},
		{Key{4, "x"}, Limit{}, nil},
		{Key{4, long}, Limit{}, nil},
		{Key{4, long + "x"}, Limit{}, ErrInvalidID},
		{Key{5, "x"}, Limit{}, nil},
		{Key{5, "some\"one"}, PerDay(5).WithBurst(7), nil},
		{Key{6, "1:a.example:x"}, PerSecond(20), nil},
		{Key{6, "1:a.example:x:y"}, PerSecond(20), nil},
		{Key{6, "1:a.example"}, PerSecond(10), nil},
		{Key{6, "1:b.example:x"}, PerSecond(10), nil},
		{Key{0, "x"}, Limit{}, ErrUnknownName},
		{Key{7, "x"}, Limit{}, ErrUnknownName},
		{Key{65535, "x"}, Limit{}, ErrUnknownName},
	} {
		i, err := ls.resolve(tc.key)
		require.ErrorIs(t, err, tc.err, tc.key)
		require.Equal(t, tc.want == Limit{}, i == 0, tc.key)
		r := ls.rules[i]
		require.Equal(t, tc.want, r.limit, tc.key)
		require.EqualValues(t, tc.want.Interval(), r.rate.interval, tc.key)

		l, ok := ls.For(tc.key)
		require.Equal(t, tc.want, l, tc.key)
		require.Equal(t, i != 0, ok, tc.key)
	}

	_, err := ls.resolve(Key{3, "x"})
	require.EqualError(t, err, `stint: invalid id "x": not of format shared: `+
		`there is one bucket for everyone, and its id is empty (Everyone)`)
	_, err = ls.resolve(Key{1, ""})
	require.EqualError(t, err, `stint: invalid id "": not of format ipAddress: it is empty (PerIP)`)
	_, err = ls.resolve(Key{7, "x"})
	require.EqualError(t, err, "stint: unknown name 7")

	require.Equal(t, "PerIP", ls.label(1))
	require.Equal(t, "", ls.label(7))
	require.Len(t, ls.rules, 1+6, "equal limits share one rule")
}

func TestResolveDoesNotAllocate(t *testing.T) {
	ls := makeLimits(t)
	for _, key := range []Key{{1, "10.0.0.1"}, {1, "10.0.0.2"}, {2, "1234:example.com"}, {3, ""}, {4, "x"}} {
		require.Zero(t, testing.AllocsPerRun(100, func() { ls.resolve(key) }), key)
	}
}

func TestLimitsAreCopies(t *testing.T) {
	names := maps.Clone(resolveNames)
	defaults := map[Name]Limit{1: PerSecond(1)}
	ids := []OverrideID{{ID: "10.0.0.2"}}
	ls, err := NewLimits(names, defaults, map[Name][]Override{1: {{ids, PerSecond(2)}}})
	require.NoError(t, err)

	delete(names, 1)
	defaults[1] = PerSecond(9)
	ids[0].ID = "10.0.0.3"
	require.Equal(t, resolveNames, ls.names)
	l, _ := ls.For(Key{1, "10.0.0.3"})
	require.Equal(t, PerSecond(1), l)
	l, _ = ls.For(Key{1, "10.0.0.2"})
	require.Equal(t, PerSecond(2), l)
}

func TestLimitsOfNothing(t *testing.T) {
	ls, err := NewLimits(nil, nil, nil)
	require.NoError(t, err)
	_, err = ls.resolve(Key{1, "x"})
	require.ErrorIs(t, err, ErrUnknownName)
	_, ok := ls.For(Key{})
	require.False(t, ok)
}

func TestNewLimitsMistakes(t *testing.T) {
	names := maps.Clone(resolveNames)
	names[8] = NameSpec{Label: "PerIP"}
	names[9] = NameSpec{Label: "Mixed", ID: Tuple(AnyOf(RegID, IPAddress), Hostname), Override: AnyOf(RegID, IPAddress)}
	ls, err := NewLimits(names,
		map[Name]Limit{1: {Count: 1, Period: time.Second}, 7: PerSecond(1)},
		map[Name][]Override{
			1: {
				{IDs: []OverrideID{{ID: "10.0.0.2"}}, Limit: PerSecond(1)},
				{IDs: []OverrideID{{ID: "10.0.0.2"}, {ID: "::ffff:10.0.0.2"}, {ID: "x"}}, Limit: PerSecond(0)},
				{Limit: PerSecond(1)},
			},
			2:  {{IDs: []OverrideID{{ID: "1234:example.com"}}, Limit: PerSecond(1)}},
			3:  {{IDs: []OverrideID{{ID: "*"}}, Limit: PerSecond(1)}},
			9:  {{IDs: []OverrideID{{ID: "2001:db8::1"}}, Limit: PerSecond(1)}},
			10: {{IDs: []OverrideID{{ID: "x"}}, Limit: PerSecond(1)}},
		})
	require.Nil(t, ls)
	require.ErrorIs(t, err, ErrUnknownName)
	require.ErrorIs(t, err, ErrInvalidID)
	require.Equal(t, []string{
		`stint: PerIP: Names 1 and 8 have the same label`,
		`stint: PerIP: burst is 0, want at least 1`,
		`stint: unknown name 7 has a default`,
		`stint: PerIP: override 2: burst is 0, want at least 1`,
		`stint: PerIP: override 2: count is 0, want at least 1`,
		`stint: PerIP: id "10.0.0.2" is overridden already, as "10.0.0.2"`,
		`stint: PerIP: id "::ffff:10.0.0.2" is overridden already, as "10.0.0.2"`,
		`stint: PerIP: invalid id "x": not of format ipAddress: want an address such as 10.0.0.1 or 2001:db8::1`,
		`stint: PerIP: override 3: it has no ids`,
		`stint: PerAccountAndHost: invalid id "1234:example.com": not of format regId: ` +
			`want a decimal number below 2⁶⁴ without leading zeros`,
		`stint: Everyone: invalid id "*": not of format shared: there is one bucket for everyone, and its id is empty`,
		`stint: Mixed: invalid id "2001:db8::1": not of format anyOf(regId,ipAddress): want 1 parts, not 4`,
		`stint: unknown name 10 has an override`,
	}, strings.Split(err.Error(), "\n"))
	var first *ConfigError
	require.ErrorAs(t, err, &first)
	require.Equal(t, "PerIP", first.Label)
}

func TestDefault(t *testing.T) {
	ls := makeLimits(t)
	for name, want := range map[Name]Limit{1: PerSecond(10), 3: PerHour(3), 4: {}, 5: {}, 9: {}, Unknown: {}} {
		got, ok := ls.Default(name)
		require.Equal(t, want, got, name)
		require.Equal(t, want != Limit{}, ok, name)
	}
}

func TestNamesAreACopy(t *testing.T) {
	ls := makeLimits(t)
	names := ls.Names()
	require.Equal(t, "PerIP", names[1].Label)
	delete(names, 1)
	require.Equal(t, "PerIP", ls.Names()[1].Label)
}

func TestLimitsInForce(t *testing.T) {
	first, second := makeLimits(t), makeLimits(t)
	l, err := New(NewMemStore(), first, nil)
	require.NoError(t, err)
	defer l.Close()
	require.Same(t, first, l.Limits())
	require.NoError(t, l.SetLimits(second))
	require.Same(t, second, l.Limits())
}

func TestLimiterNow(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 1, time.UTC)
	l, err := New(NewMemStore(), makeLimits(t), &Options{Now: func() time.Time { return noon }})
	require.NoError(t, err)
	defer l.Close()
	require.True(t, noon.Equal(l.Now()))
}

func TestDumpOverrides(t *testing.T) {
	var b strings.Builder
	require.NoError(t, makeLimits(t).DumpOverrides(&b))
	require.Equal(t, `name,id,count,burst,period,comment
OnlyOverridden,"some""one",5,7,24h,"a, b"
PerAccountAndHost,1234,20,20,1m,
PerIP,10.0.0.2,20,20,1s,mapped
PerIP,10.0.0.3,20,20,1s,
ThreeParts,1:a.example,20,20,1s,
`, b.String())

	require.ErrorIs(t, makeLimits(t).DumpOverrides(failing{}), errFull)
}

var errFull = errors.New("disk full")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFull }

func BenchmarkResolve(b *testing.B) {
	ls := makeLimits(b)
	for _, key := range []Key{{6, "1:b.example:x"}, {1, "10.0.0.2"}, {3, ""}} {
		b.Run(ls.label(key.Name), func(b *testing.B) {
			for b.Loop() {
				ls.resolve(key)
			}
		})
	}
}

// An override that no key can have is a mistake.
func TestOverrideOfAnotherFormat(t *testing.T) {
	names := Names{1: {Label: "X", ID: Tuple(Hostname, RegID), Override: AnyID}}
	ls, err := NewLimits(names, map[Name]Limit{1: PerSecond(1)}, map[Name][]Override{1: {{IDs: []OverrideID{{"Example.COM", ""}}, Limit: PerSecond(9)}}})
	if err != nil {
		return
	}
	key, err := names.Key(1, "Example.COM:5")
	require.NoError(t, err)
	l, _ := ls.For(key)
	require.EqualValues(t, 9, l.Burst)
}

// A Limits that NewLimits did not make has no limit.
func TestZeroLimits(t *testing.T) {
	require.NotPanics(t, func() { new(Limits).For(Key{1, "a"}) })
}
