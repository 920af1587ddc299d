package stint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/gcra"
	"github.com/stint-go/stint/internal/spell"
	"github.com/stint-go/stint/internal/testlength"
)

func TestDurability(t *testing.T) {
	require.Equal(t, "Durability(5)", Durability(5).String())
	for i, text := range []string{"default", "memory", "flushed", "leased", "synced", "", "Synced", " synced", "4"} {
		got, err := ParseDurability(text)
		if i < 1 || i > 4 {
			require.EqualError(t, err, "stint: durability is "+spell.Quote(text)+", want memory, flushed, leased or synced")
		} else {
			require.NoError(t, err)
			require.Equal(t, Durability(i), got)
		}
		if i <= 4 {
			require.Equal(t, text, Durability(i).String())
		}
	}
}

// A Limit is a field of JSON, and a flag, with all that it has.
func TestLimitText(t *testing.T) {
	with := func(l Limit, queue int64, level Durability) Limit {
		l.Queue, l.Durability = queue, level
		return l
	}
	for text, limit := range map[string]Limit{
		"":                                    {},
		"unlimited":                           Unlimited,
		"blocked":                             Blocked,
		"300/3h":                              {Burst: 300, Count: 300, Period: 3 * time.Hour},
		"5/1m burst 20":                       PerMinute(5).WithBurst(20),
		"5/1m burst 20 queue 100 leased":      with(PerMinute(5).WithBurst(20), 100, Leased),
		"5/1m queue 1":                        with(PerMinute(5), 1, 0),
		"5/1m memory":                         with(PerMinute(5), 0, Memory),
		"1000/month":                          EachMonth(1000, nil),
		"50/day@Europe/Berlin from 4h synced": with(EachDay(50, zoneOf(t, "Europe/Berlin")).StartingAt(4*time.Hour), 0, Synced),
	} {
		type config struct{ Limit Limit }
		data, err := json.Marshal(config{limit})
		require.NoError(t, err)
		require.Equal(t, `{"Limit":"`+text+`"}`, string(data))
		var got config
		require.NoError(t, json.Unmarshal(data, &got))
		require.Equal(t, limit, got.Limit)

		flags := flag.NewFlagSet("", flag.ContinueOnError)
		flags.TextVar(&got.Limit, "limit", PerHour(1), "")
		require.NoError(t, flags.Parse([]string{"-limit", text}))
		require.Equal(t, limit, got.Limit)
	}
	for text, want := range map[string]string{
		"5":                    `want count/period`,
		"5/1m queue":           `period is "1m queue"`,
		"5/1m queue 0":         `stint: limit "5/1m queue 0": queue: want 1 or more`,
		"5/1m queue x":         `queue: number is "x"`,
		"5/1m leased queue 10": `period is "1m leased"`,
		"5/day queue 10":       `queue is 10, want none`,
		"5/1m durable":         `period is "1m durable"`,
	} {
		l := PerHour(7)
		require.ErrorContains(t, l.UnmarshalText([]byte(text)), want)
		require.Equal(t, PerHour(7), l)
	}
	require.ErrorAs(t, errorOf(Limit{Burst: 1}.MarshalText()), new(*ConfigError))
}

func TestParseLimit(t *testing.T) {
	for _, tc := range []struct {
		text                string
		limit               Limit
		interval, tolerance time.Duration
		other               string // of the same limit
	}{
		{"20/1s", PerSecond(20), 50 * time.Millisecond, time.Second, "20/1000ms"},
		{"10/1s", PerSecond(10), 100 * time.Millisecond, time.Second, "10/s"},
		{"6/1m burst 9", PerMinute(6).WithBurst(9), 10 * time.Second, 90 * time.Second, "6/min burst 9"},
		{"300/1h", PerHour(300), 12 * time.Second, time.Hour, "300/h"},
		{"5/1m", PerMinute(5), 12 * time.Second, time.Minute, "5/60s"},
		{"100/1h", PerHour(100), 36 * time.Second, time.Hour, "100/60m"},
		{"1/24h burst 3600", PerDay(1).WithBurst(3600), 24 * time.Hour, 3600 * 24 * time.Hour, "1/1d burst 3600"},
		{"2/168h", Limit{Burst: 2, Count: 2, Period: 168 * time.Hour}, 84 * time.Hour, 168 * time.Hour, "2/1w"},
		{"300/3h", Limit{Burst: 300, Count: 300, Period: 3 * time.Hour}, 36 * time.Second, 3 * time.Hour, "300/180m"},
		{"3/1h30m burst 2", Limit{Burst: 2, Count: 3, Period: 90 * time.Minute}, 30 * time.Minute, time.Hour,
			"3/90m burst 2"},
		{"3/10ns", Limit{Burst: 3, Count: 3, Period: 10}, 4, 12, "3/10ns burst 3"},
		{"1/10h0m1s", Limit{Burst: 1, Count: 1, Period: 36001e9}, 36001e9, 36001e9, "1/36001s"},
	} {
		require.NoError(t, tc.limit.Validate())
		require.Equal(t, tc.text, tc.limit.String())
		require.Equal(t, tc.interval, tc.limit.Interval(), tc.text)
		require.Equal(t, tc.tolerance, tc.limit.Tolerance(), tc.text)
		for _, text := range []string{tc.text, tc.other} {
			got, err := ParseLimit(text)
			require.NoError(t, err)
			require.Equal(t, tc.limit, got)
		}
	}
	form := "want count/period such as 5/1m, 300/3h or 1/1d burst 10"
	mistakes := map[string]string{
		"5/1m burst 0":  "burst is 0, want at least 1",
		"5/0s":          "period is 0s, want more than 0",
		"2000000000/1s": "count is 2000000000, want at most 1 per nanosecond of the period",
	}
	for _, text := range []string{
		"", "5", "/", "5/", "/1m", "ten/1m", "5/1m burst ", "5/1m burst 020", "5/1m burst 20 burst 20",
		strings.Repeat("5", 1000),
	} {
		mistakes[text] = form
	}
	for text, want := range map[string]string{
		"1,000/1h": "; did you mean 1000/1h?", "1_000/1h": "; did you mean 1000/1h?", "5r/s": "; did you mean 5/1s?",
		"5 / 1m": "; did you mean 5/1m?", "30r/m burst 5": "; did you mean 30/1m burst 5?", "1.5/1h": "", "05/1m": "", "+5/1m": "",
	} {
		count, _, _ := strings.Cut(text, "/")
		mistakes[text] = "count is " + spell.Quote(count) + ", want a plain decimal integer" + want
	}
	mistakes["5 per minute"] = form + "; did you mean 5/1m?"
	mistakes["9223372036854775808/1m"] = "count is 9223372036854775808, want at most 9223372036854775807"
	for _, period := range []string{"60", "1y", "100000w", "99999999999h", "1m/1m", "1m burst", "months"} {
		mistakes["5/"+period] = "period is " + spell.Quote(period) + ", want a duration such as 90s, 180m, 36h, 1d or 2w"
	}
	for text, meant := range map[string]string{
		"5/m": "5/1m", "5/Minute": "5/1m", "10/sec": "10/1s", "5/d": "5/1d",
		"5/2 hours": "5/2h", "5/1m ": "5/1m", "5/weeks": "5/1w", "5/1min burst 9": "5/1m burst 9",
	} {
		period, _, _ := strings.Cut(strings.TrimLeft(text, "0123456789")[1:], " burst")
		mistakes[text] = "period is " + spell.Quote(period) +
			", want a duration such as 90s, 180m, 36h, 1d or 2w; did you mean " + meant + "?"
	}
	for text, want := range mistakes {
		require.EqualError(t, errorOf(ParseLimit(text)), "stint: limit "+spell.Quote(text)+": "+want)
	}
}

func TestLimitValidate(t *testing.T) {
	for _, tc := range []struct {
		limit Limit
		want  []string
	}{
		{Limit{}, []string{"burst is 0, want at least 1", "count is 0, want at least 1", "period is 0s, want more than 0"}},
		{Limit{Burst: math.MinInt64, Count: 1, Period: 1}, []string{"burst is -9223372036854775808, want at least 1"}},
		{Limit{Burst: 1, Count: 2, Period: 1}, []string{"count is 2, want at most 1 per nanosecond of the period"}},
		{Limit{Burst: math.MaxInt64, Count: 1, Period: math.MaxInt64},
			[]string{"burst is 9223372036854775807, want a bucket that refills within 100 years"}},
		{Limit{Burst: 1, Count: 1, Period: -time.Minute, Queue: -1, Durability: 5},
			[]string{"period is -1m, want more than 0",
				"queue is -1, want 0 or more", "durability is Durability(5), want memory, flushed, leased or synced"}},
		{Limit{Period: -1}, []string{"burst is 0, want at least 1", "count is 0, want at least 1", "period is -1ns, want more than 0"}},
		{Blocked.WithBurst(5), []string{"burst is 5, want none: the limit is blocked"}},
		{Unlimited.withLevel(Synced), []string{"durability is synced, want none: the limit is unlimited"}},
	} {
		err := tc.limit.Validate()
		require.EqualError(t, err, "stint: "+strings.Join(tc.want, "\nstint: "))
		require.ErrorAs(t, err, new(*ConfigError))
		require.Zero(t, tc.limit.Interval()+tc.limit.Tolerance())
	}
	for _, line := range []int{0, 7} { // of an error of package limitsfile
		place := []string{7: ":7"}[line]
		require.EqualError(t, &ConfigError{File: "defaults.yml", Line: line, Label: "A", Err: errFickle}, "defaults.yml"+place+": A: not today")
	}
}

// Unlimited and Blocked are kinds of their own, which no numbers make.
func TestLimitKinds(t *testing.T) {
	for _, l := range []Limit{{}, PerHour(1), {Burst: math.MaxInt64, Period: -1}, EachDay(1, nil)} {
		require.False(t, l == Unlimited || l == Blocked)
	}
	require.Equal(t, Unlimited, Unlimited.DividedBy(3))
	require.NoError(t, errors.Join(Unlimited.Validate(), Blocked.Validate()))
	require.Equal(t, "unlimited blocked", fmt.Sprint(Unlimited, " ", Blocked))
	require.Zero(t, Blocked.Interval())
}

func FuzzLimit(f *testing.F) {
	f.Add(int64(20), int64(20), int64(1e9))
	f.Add(int64(1), int64(1), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, burst, count, period int64) {
		l := Limit{Burst: burst, Count: count, Period: time.Duration(period)}
		if l.Validate() != nil {
			require.Zero(t, l.Interval()+l.Tolerance())
			return
		}
		got, err := ParseLimit(l.String())
		require.NoError(t, err)
		require.Equal(t, l, got)
	})
}

var resolveNames = Names{
	1: {Label: "PerIP", IDs: IPAddress},
	2: {Label: "PerAccountAndHost", IDs: Tuple(number, word), OverrideIDs: number},
	3: {Label: "Everyone", IDs: Single},
	4: {Label: "Off", Limit: Unlimited},
	5: {Label: "OnlyOverridden"},
	6: {Label: "ThreeParts", IDs: Tuple(number, word, AnyID), OverrideIDs: Tuple(number, word)},
}

func makeLimits(t testing.TB) *Limits {
	defaults := map[Name]Limit{1: PerSecond(10), 2: PerMinute(2), 3: PerHour(3), 6: PerSecond(10)}
	return limitsOf(t, resolveNames, defaults,
		Override{Key: Name(1).Key("10.0.0.9"), Limit: Unlimited},
		Override{Key: Name(1).Key("10.0.0.3"), Limit: PerSecond(20)},
		Override{Key: Name(1).Key("::ffff:10.0.0.2"), Limit: PerSecond(20), Comment: "mapped"},
		Override{Key: Name(2).Key("1234"), Limit: PerMinute(20)},
		Override{Key: Name(5).Key("some\"one"), Limit: PerDay(5).WithBurst(7), Comment: "a, b"},
		Override{Key: Name(6).Key("1:A.example"), Limit: PerSecond(20)},
	)
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
		{Key{1, "10.0.0.9"}, Limit{}, nil},
		{Key{1, ""}, Limit{}, ErrInvalidID},
		{Key{2, "1234:example.com"}, PerMinute(20), nil},
		{Key{2, "1234:2001:db8::1"}, PerMinute(20), nil},
		{Key{2, "1234:"}, PerMinute(20), nil},
		{Key{2, "1234"}, PerMinute(2), nil}, // no second part
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
		require.EqualValues(t, tc.want.Interval(), ls.rules[i].Rate.Interval, tc.key)

		if tc.err == nil {
			require.Zero(t, testing.AllocsPerRun(10, func() { ls.resolve(tc.key) }), tc.key)
		}
		require.Equal(t, cmp.Or(tc.want, Unlimited), ls.For(tc.key), tc.key)
	}

	_, err := ls.resolve(Key{3, "x"})
	require.EqualError(t, err, `stint: invalid id "x": not of format single: `+
		`there is one bucket for everyone, and its id is empty (Everyone)`)
	_, err = ls.resolve(Key{1, ""})
	require.EqualError(t, err, `stint: invalid id "": not of format ipAddress: it is empty (PerIP)`)
	require.EqualError(t, errorOf(ls.resolve(Key{7, "x"})), "stint: unknown name 7")

	require.Equal(t, "PerIP", ls.label(1))
	require.Equal(t, "", ls.label(7))
	require.Len(t, ls.rules, 2+6, "equal limits share one rule")
}

func TestLimitsCopied(t *testing.T) {
	names := Names{1: resolveNames[1]}
	defaults := map[Name]Limit{1: PerSecond(1)}
	overrides := []Override{{Key: Name(1).Key("10.0.0.2"), Limit: PerSecond(2)}}
	ls := limitsOf(t, names, defaults, overrides...)

	delete(names, 1)
	defaults[1] = PerSecond(9)
	overrides[0].Key.ID = "10.0.0.3"
	copied := ls.Names()
	require.Equal(t, "PerIP", copied[1].Label)
	delete(copied, 1)
	require.Equal(t, "PerIP", ls.Names()[1].Label)
	spec, ok := ls.Spec(1)
	require.True(t, ok)
	require.Equal(t, ls.Names()[1], spec)
	_, ok = ls.Spec(2)
	require.False(t, ok)
	l := ls.For(Key{1, "10.0.0.3"})
	require.Equal(t, PerSecond(1), l)
	l = ls.For(Key{1, "10.0.0.2"})
	require.Equal(t, PerSecond(2), l)
}

func TestLimitsOfNothing(t *testing.T) {
	for _, ls := range []*Limits{limitsOf(t, nil, nil), new(Limits)} {
		require.ErrorIs(t, errorOf(ls.resolve(Key{1, "x"})), ErrUnknownName)
		require.Equal(t, Unlimited, ls.For(Key{}))
		require.ErrorIs(t, errorOf(ls.With(Override{Key: Name(1).Key("x"), Limit: PerHour(1)})), ErrUnknownName)
	}
}

func TestNewLimitsMistakes(t *testing.T) {
	names := maps.Clone(resolveNames)
	names[5], names[8] = NameSpec{Label: "Forgotten"}, NameSpec{Label: "PerIP", Limit: Unlimited}
	names[9] = NameSpec{Label: "Mixed", IDs: Tuple(IPAddress, word), OverrideIDs: IPAddress}
	wrong := map[Name]Limit{1: {Count: 1, Period: time.Second}, 6: PerSecond(1)}
	ls, err := NewLimits(names.WithLimits(wrong),
		Override{Key: Name(1).Key("10.0.0.2"), Limit: PerSecond(1)},
		Override{Key: Name(1).Key("::ffff:10.0.0.2"), Limit: PerSecond(0)},
		Override{Key: Name(1).Key("10.0.0.2"), Limit: PerSecond(1)},
		Override{Key: Name(1).Key("x"), Limit: PerSecond(1)},
		Override{Key: Name(2).Key("1234:example.com"), Limit: PerSecond(1)},
		Override{Key: Name(3).Key("*"), Limit: PerSecond(1)},
		Override{Key: Name(9).Key("2001:db8::1"), Limit: PerSecond(1)},
		Override{Key: Name(10).Key("x"), Limit: PerSecond(1)},
	)
	require.Nil(t, ls)
	require.ErrorIs(t, err, ErrUnknownName)
	require.ErrorIs(t, err, ErrInvalidID)
	require.Equal(t, []string{
		`stint: PerIP: Names 1 and 8 have the same label`,
		`stint: PerIP: burst is 0, want at least 1`,
		`stint: Forgotten: it has no limit: give its NameSpec a Limit, or stint.Unlimited`,
		`stint: PerIP: override of "::ffff:10.0.0.2": burst is 0, want at least 1`,
		`stint: PerIP: override of "::ffff:10.0.0.2": count is 0, want at least 1`,
		`stint: PerIP: id "::ffff:10.0.0.2" is overridden already, as "10.0.0.2"`,
		`stint: PerIP: id "10.0.0.2" is overridden already, as "10.0.0.2"`,
		`stint: PerIP: invalid id "x": not of format ipAddress: want an address such as 10.0.0.1 or 2001:db8::1`,
		`stint: PerAccountAndHost: invalid id "1234:example.com": not of format number: want a number`,
		`stint: Everyone: invalid id "*": not of format single: there is one bucket for everyone, and its id is empty`,
		`stint: Mixed: invalid id "2001:db8::1": not of format ipAddress: want 1 parts, not 4`,
		`stint: unknown name 10 has an override`,
	}, strings.Split(err.Error(), "\n"))
	var first *ConfigError
	require.ErrorAs(t, err, &first)
	require.Equal(t, "PerIP", first.Label)
}

func TestOverrides(t *testing.T) {
	ls := makeLimits(t)
	var got []string
	for name := range Name(8) {
		for o := range ls.Overrides(name) {
			got = append(got, strings.Join([]string{ls.label(name), o.Key.ID, o.Limit.String(), o.Comment}, " "))
		}
	}
	require.Equal(t, []string{
		"PerIP 10.0.0.2 20/1s mapped",
		"PerIP 10.0.0.3 20/1s ",
		"PerIP 10.0.0.9 unlimited ",
		"PerAccountAndHost 1234 20/1m ",
		"OnlyOverridden some\"one 5/24h burst 7 a, b",
		"ThreeParts 1:a.example 20/1s ",
	}, got)
}

// TestLimitOfNameSpec takes a limit from WithLimits or, if it is not there, from
// the NameSpec.
func TestLimitOfNameSpec(t *testing.T) {
	names := Names{1: {Label: "A", Limit: PerSecond(1)}, 2: {Label: "B", Limit: Unlimited}, 3: {Label: "C"}}
	some := []Override{{Key: Name(3).Key("x"), Limit: PerHour(3)}}
	for _, tc := range []struct {
		defaults  map[Name]Limit
		overrides []Override
		want      [4]Limit // by Name; zero is unlimited
		err       string
	}{
		{nil, some, [4]Limit{1: PerSecond(1)}, ""},
		{map[Name]Limit{}, some, [4]Limit{1: PerSecond(1)}, ""},
		{map[Name]Limit{2: PerSecond(2)}, some, [4]Limit{1: PerSecond(1), 2: PerSecond(2)}, ""},
		{map[Name]Limit{1: Unlimited, 3: Unlimited}, nil, [4]Limit{}, ""},
		{map[Name]Limit{1: PerSecond(5), 3: PerSecond(3)}, some, [4]Limit{1: PerSecond(5), 3: PerSecond(3)}, ""},
		{nil, nil, [4]Limit{}, "stint: C: it has no limit: give its NameSpec a Limit, or stint.Unlimited"},
	} {
		ls, err := NewLimits(names.WithLimits(tc.defaults), tc.overrides...)
		if tc.err != "" {
			require.EqualError(t, err, tc.err)
			continue
		}
		require.NoError(t, err)
		for name := Name(1); name <= 3; name++ {
			require.Equal(t, cmp.Or(tc.want[name], Unlimited), ls.For(name.Key("any")))
		}
	}
	names[1] = NameSpec{Label: "A", Limit: PerSecond(0)}
	_, err := NewLimits(names.WithLimits(map[Name]Limit{3: Unlimited}))
	require.EqualError(t, err, "stint: A: burst is 0, want at least 1\nstint: A: count is 0, want at least 1")
}

// withNames leaves Names alone that are declared, but only under their labels.
func TestWithNames(t *testing.T) {
	ls := testLimits(t)
	with, err := ls.withNames(Names{perID: {Label: testNames[perID].Label}, 700: {Label: "New"}})
	require.NoError(t, err)
	spec, ok := with.Spec(700)
	require.True(t, ok)
	require.Equal(t, "New", spec.Label)
	limit := with.For(perID.Key("a"))
	want := ls.For(perID.Key("a"))
	require.Equal(t, want, limit)
	_, err = ls.withNames(Names{perID: {Label: "Another"}, 700: {Label: "New"}})
	require.ErrorIs(t, err, ErrNameMismatch)
	require.EqualError(t, err, `stint: PerID: names differ from the file's: 1 has this label, not "Another"`)
	_, ok = ls.Spec(700)
	require.False(t, ok)

	none := limitsOf(t, nil, nil)
	with, err = none.withNames(Names{700: {Label: "New"}})
	require.NoError(t, err)
	require.Len(t, with.Names(), 1)
	require.Empty(t, none.Names())
}

// A rule has the same levels as a limit.
func TestLevelsAgree(t *testing.T) {
	for level, same := range map[Durability]gcra.Level{
		Memory: gcra.Memory, Flushed: gcra.Flushed, Leased: gcra.Leased, Synced: gcra.Synced,
	} {
		require.EqualValues(t, same, level, level)
	}
}

// planDefaults are the limits of ids without a plan.
var planDefaults = map[Name]Limit{perID: PerMinute(5), other: PerMinute(100)}

// TestBlocked holds every call to Blocked, for a bucket in memory and for one
// that is only in the store.
func TestBlocked(t *testing.T) {
	store := newMemStore()
	key := perID.Key("a")
	first := rigOn(t, store, testLimits(t), Options{})
	first.spend(key, 3)
	require.NoError(t, first.Flush())
	spent := store.tats[key]
	for _, resident := range []bool{true, false} {
		t.Run(fmt.Sprintf("resident %v", resident), func(t *testing.T) {
			r := first
			if !resident {
				saved := NewMemStore()
				require.NoError(t, saved.Save([]Change{{key, spent}}))
				r = rigOn(t, saved, testLimits(t), Options{})
			}
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: Blocked}))
			denied := Decision{
				Key: key, Limit: Blocked, RetryAfter: math.MaxInt64, ResetAfter: math.MaxInt64,
			}
			for _, cost := range []int64{0, 1, 1000, math.MaxInt64} {
				require.Equal(t, denied, r.spend(key, cost))
				require.Equal(t, denied, r.check(key, cost))
			}
			require.False(t, r.Allow(key))
			require.ErrorIs(t, errorOf(r.Spend(key, -1)), ErrNegativeCost)

			b := single.Key("b")
			for _, reqs := range [][]Request{
				{{Key: b, Cost: 1}, {Key: key}}, {{Key: key, Cost: 1}, {Key: b, Cost: 1}},
				{{Key: b, Cost: 1}, {Key: key, Cost: 1, Mode: CheckOnly}}, {{Key: off.Key("x")}, {Key: key}},
			} {
				require.Equal(t, denied, r.spendAll(reqs...))
			}
			require.True(t, r.spendAll(Request{Key: b, Cost: 1}, Request{Key: key, Cost: 1, Mode: SpendOnly}).Allowed)
			ds := make([]Decision, 2)
			require.NoError(t, r.DoEach(context.Background(), []Request{{Key: key, Cost: 1}, {Key: key}}, ds))
			ds[0].at, ds[1].at = 0, 0
			require.Equal(t, []Decision{denied, denied}, ds)

			require.ErrorIs(t, errorOf(r.Reserve(key.Cost(1))), ErrBlocked)
			require.ErrorIs(t, errorOf(r.Wait(context.Background(), key.Cost(0))), ErrBlocked)
			r.hold(key, time.Minute)
			require.Equal(t, denied, r.spend(key, 1), "a hold is over sooner")
			r.hold(key, 0)
			require.Equal(t, Decision{Allowed: true, Key: key, Limit: Blocked}, r.refund(key, 2))
			require.Equal(t, Blocked, r.bucket(key).Limit)
			require.Zero(t, r.bucket(key).Remaining)
			require.NoError(t, r.Flush())

			require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a")}))
			require.EqualValues(t, 2, r.left(key), "the bucket is as it was")
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a"), Limit: Blocked}))
			require.NoError(t, r.Reset(key))
			require.Equal(t, denied, r.check(key, 0))
			require.NoError(t, r.SetOverrides(Override{Key: perID.Key("a")}))
			require.EqualValues(t, 5, r.left(key), "Reset made it full")
		})
	}
	t.Run("all but a few", func(t *testing.T) {
		names := Names{1: {Label: "Few", Limit: Blocked}}
		limits := limitsOf(t, names, nil, Override{Key: Name(1).Key("a"), Limit: PerSecond(1)})
		r := rigOn(t, NewMemStore(), limits, Options{FailOpen: true})
		require.True(t, r.Allow(Name(1).Key("a")))
		require.False(t, r.Allow(Name(1).Key("b")))
	})
}

// TestWith changes overrides of an id, and looks at the Limits before and after.
func TestWith(t *testing.T) {
	ls := makeLimits(t)
	all := func(ls *Limits, name Name) map[string]Limit {
		got := map[string]Limit{}
		for o := range ls.Overrides(name) {
			got[o.Key.ID+" "+o.Comment] = o.Limit
		}
		require.Len(t, got, ls.CountOverrides(name))
		return got
	}
	before := all(ls, 1)
	other, err := ls.With(Override{Key: Name(1).Key("::ffff:10.0.0.7"), Limit: PerDay(7), Comment: "why"})
	require.NoError(t, err)
	require.Equal(t, before, all(ls, 1), "the old Limits are as they were")
	want := maps.Clone(before)
	want["10.0.0.7 why"] = PerDay(7)
	require.Equal(t, want, all(other, 1))
	require.Equal(t, PerDay(7), other.For(Name(1).Key("10.0.0.7")))
	again, err := other.With(Override{Key: Name(1).Key("10.0.0.7")})
	require.NoError(t, err)
	require.Equal(t, before, all(again, 1))
	rules := len(again.rules)
	again, err = again.With(Override{Key: Name(1).Key("10.0.0.7"), Limit: PerDay(7)})
	require.NoError(t, err)
	require.Len(t, again.rules, rules, "equal limits share one rule")

	_, err = ls.With(
		Override{Key: Name(1).Key("x"), Limit: PerDay(1)},
		Override{Key: Name(65535).Key("x"), Limit: PerDay(1)},
	)
	require.ErrorIs(t, err, ErrInvalidID)
	require.ErrorIs(t, err, ErrUnknownName)
	_, err = ls.With(Override{Key: Name(1).Key("10.0.0.7"), Limit: PerDay(0)})
	require.EqualError(t, err, `stint: PerIP: override of "10.0.0.7": burst is 0, want at least 1`+"\n"+
		`stint: PerIP: override of "10.0.0.7": count is 0, want at least 1`)
	require.Zero(t, ls.CountOverrides(65535))
	require.Empty(t, all(ls, 65535))
}

// Override finds what Overrides lists, in any spelling of an id, and nothing else.
func TestOverride(t *testing.T) {
	ls, err := makeLimits(t).With(
		Override{Key: Name(6).Key("1:b.example"), Limit: Blocked},
		Override{Key: Name(3).Key(""), Limit: PerDay(9)},
	)
	require.NoError(t, err)
	for _, c := range []struct {
		key  Key
		want Limit // zero: there is none
	}{
		{Name(1).Key("10.0.0.2"), PerSecond(20)},
		{Name(1).Key("::ffff:10.0.0.2"), PerSecond(20)},
		{Name(1).Key("10.0.0.9"), Unlimited},
		{Name(1).Key("10.0.0.1"), Limit{}},
		{Name(1).Key("x"), Limit{}},
		{Name(2).Key("1234"), PerMinute(20)},
		{Name(2).Key("1234:x"), Limit{}},
		{Name(6).Key("1:B.example"), Blocked},
		{Name(6).Key("1:b.example:x"), Limit{}},
		{Name(3).Key(""), PerDay(9)},
		{Name(3).Key("x"), Limit{}},
		{Name(4).Key("10.0.0.2"), Limit{}},
		{Name(0).Key("10.0.0.2"), Limit{}},
		{Name(65535).Key("10.0.0.2"), Limit{}},
	} {
		got, ok := ls.Override(c.key)
		require.Equal(t, c.want, got, "%v", c.key)
		require.Equal(t, c.want != Limit{}, ok, "%v", c.key)
	}
	without, err := ls.With(Override{Key: Name(1).Key("10.0.0.2")})
	require.NoError(t, err)
	_, ok := without.Override(Name(1).Key("10.0.0.2"))
	require.False(t, ok)
}

// TestDividedBy holds the laws of a divided limit: n of them admit no more than
// the whole, at once and in the long run.
func TestDividedBy(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 5))
	any := func(most int64) int64 { return 1 + rnd.Int64N(1+rnd.Int64N(min(most, math.MaxInt64-1))) }
	checked := 0
	for range testlength.Of(200_000, 20_000) {
		l := Limit{Burst: any(1e6), Count: any(1e6), Period: time.Duration(any(math.MaxInt64)), Queue: rnd.Int64N(9),
			Durability: Durability(rnd.IntN(5))}
		if l.Validate() != nil {
			continue
		}
		checked++
		n := any([]int64{3, 100, math.MaxInt64}[rnd.IntN(3)])
		s := l.DividedBy(n)
		require.NoError(t, s.Validate(), "%v of %d", l, n)
		require.Equal(t, max(1, l.Burst/n), s.Burst)
		require.Equal(t, l.Durability, s.Durability)
		require.Equal(t, l.Queue == 0, s.Queue == 0)
		whole := new(big.Int).Mul(big.NewInt(int64(l.Interval())), big.NewInt(n))
		if century := big.NewInt(100 * 36525 * 24 * 3600 * 1e7); whole.Cmp(century) > 0 {
			require.Equal(t, century.Int64(), int64(s.Interval()))
		} else {
			require.Equal(t, whole.Int64(), int64(s.Interval()), "%v of %d", l, n)
		}
		if l.Burst%n == 0 {
			require.Equal(t, l.Tolerance(), s.Tolerance(), "%v of %d", l, n)
		}
	}
	require.Greater(t, checked, 1000)
	for _, l := range []Limit{Unlimited, Blocked, {}, PerHour(5)} {
		for _, n := range []int64{1, 0, -1} {
			require.Equal(t, l, l.DividedBy(n))
		}
		if l.Count == 0 {
			require.Equal(t, l, l.DividedBy(3))
		}
	}
}

// TestWithinWindow holds the limit to its promise: no window has more than n.
func TestWithinWindow(t *testing.T) {
	newRateOf := func(t *testing.T, n, period int64) gcra.Rate {
		l := WithinWindow(n, time.Duration(period))
		require.NoError(t, l.Validate())
		r, _, _ := gcra.NewRate(l.Burst, l.Count, period)
		return r
	}
	t.Run("every history of small ones", func(t *testing.T) {
		const period, end = 6, 15
		for n := int64(1); n <= period; n++ {
			r := newRateOf(t, n, period)
			most := int64(0)
			for asked := range 1 << end { // a bit for each nanosecond
				tat, admitted := int64(1000), [end]int64{}
				for now := range int64(end) {
					if asked>>now&1 == 0 {
						continue
					}
					next, wait := r.Spend(tat, 1000+now, 1, 0)
					if wait == 0 {
						admitted[now] = 1
					}
					tat = next
				}
				sum := int64(0)
				for now := range admitted {
					if sum += admitted[now]; now >= period {
						sum -= admitted[now-period]
					}
					most = max(most, sum)
				}
			}
			if period%n == 0 {
				require.Equal(t, n, most, "reaches n")
			}
			require.LessOrEqual(t, most, n)
		}
	})
	t.Run("share in the long run", func(t *testing.T) {
		for n := int64(1); n < 10_000; n++ {
			share := float64(time.Hour) / float64(WithinWindow(n, time.Hour).Interval()) / float64(n)
			require.GreaterOrEqual(t, share, 0.98-1e-6, n)
			require.True(t, n >= 50 || share > 1-1e-6, n)
		}
		require.Equal(t, Limit{Burst: 1, Count: 1, Period: time.Minute}, WithinWindow(1, time.Minute))
		require.Equal(t, Limit{Burst: 101, Count: 4900, Period: time.Hour}, WithinWindow(5000, time.Hour))
	})
	for _, l := range []Limit{WithinWindow(0, time.Hour), WithinWindow(-100, time.Hour), WithinWindow(1, 0),
		WithinWindow(2000, time.Microsecond)} {
		require.Error(t, l.Validate())
	}
}
