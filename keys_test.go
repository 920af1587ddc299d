package stint

import (
	"errors"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/spell"
)

// The formats of these tests. A program takes those of package idformat.
var (
	number = spell.NewFormat("number", func(id string) (string, error) {
		if _, err := strconv.ParseUint(id, 10, 64); err != nil {
			return "", errors.New("want a number")
		}
		return id, nil
	})
	word = spell.NewFormat("word", func(id string) (string, error) { return strings.ToLower(id), nil })
)

var errFickle = errors.New("not today")

// fickle is a format that a program might write. Its errors do not wrap
// ErrInvalidID, it may return anything, and it cannot be compared.
type fickle struct{ _ []int }

func (fickle) String() string { return "fickle" }

func (fickle) Canonical(id string) (string, error) {
	switch id {
	case "empty":
		return "", nil
	case "colon":
		return "a:b", nil
	}
	return "", errFickle
}

func TestFormats(t *testing.T) {
	for _, tc := range []struct {
		format   IDFormat
		id, want string
		err      string // if it is not canonical
	}{
		{AnyID, "Any thing\xff", "Any thing\xff", ""},
		{AnyID, strings.Repeat("x", 512), strings.Repeat("x", 512), ""},
		{AnyID, "", "", "not of format anyID: it is empty"},
		{AnyID, strings.Repeat("x", 513), "", "not of format anyID: it is 513 bytes long, more than 512"},

		{Single, "", "", ""},
		{Single, "*", "", "not of format single: there is one bucket for everyone, and its id is empty"},

		{IPAddress, "10.0.0.1", "10.0.0.1", ""},
		{IPAddress, "::ffff:10.0.0.1", "10.0.0.1", ""},
		{IPAddress, "64:ff9b::a00:1", "10.0.0.1", ""},
		{IPAddress, "2001:0DB8:0000:0000:0000:FF00:0042:8329", "2001:db8::ff00:42:8329", ""},
		{IPAddress, "", "", "not of format ipAddress: want an address such as 10.0.0.1 or 2001:db8::1"},
		{IPAddress, "10.0.0.01", "", "want an address such as"},
		{IPAddress, "10.0.0.256", "", "want an address such as"},
		{IPAddress, "10.0.0", "", "want an address such as"},
		{IPAddress, "10.0..1", "", "want an address such as"},
		{IPAddress, "10.0.0.1.", "", "want an address such as"},
		{IPAddress, "10.0.0.0.1", "", "want an address such as"},
		{IPAddress, "10.0.0.0/8", "", "want an address such as"},
		{IPAddress, " 10.0.0.1", "", "want an address such as"},
		{IPAddress, "fe80::1%eth0", "", "not of format ipAddress: want an address without a zone"},

		{Tuple(number, Tuple(number, word)), "1:2:A.example", "1:2:a.example", ""},
		{Tuple(Tuple(number, word), number), "1:A.example:2", "1:a.example:2", ""},
		{Tuple(nil, number), "x:7", "x:7", ""},
		{Tuple(number, Single), "7:", "7:", ""},
		{Tuple(number, IPAddress), "12345678:2001:db8:0::1", "12345678:2001:db8::1", ""},
		{Tuple(number, word), "7", "", "not of format tuple(number,word): want 2 parts, not 1"},
		{Tuple(number, word), "x:7", "", `part 1, "x": not of format number: want a number`},
		{Tuple(IPAddress, number), "2001:db8::1:7", "", `part 1, "2001": not of format ipAddress`},
		{Tuple(AnyID, AnyID), strings.Repeat("x", 256) + ":" + strings.Repeat("x", 256), "", "it is 513 bytes long"},
		{Tuple(fickle{}, number), "colon:7", "", `part 1, "colon": its canonical spelling "a:b" holds a colon`},
		{Tuple(fickle{}, number), "x:7", "", `part 1, "x": not of format fickle: not today`},
		{Tuple(Single), "", "", "not of format tuple(single): it is empty"},
		{Tuple(), "", "", "not of format tuple(): it is empty"},
		{Tuple(), "x", "", "not of format tuple(): it is empty"},
	} {
		got, err := tc.format.Canonical(tc.id)
		require.Equal(t, tc.want, got, "%v %s", tc.format, spell.Quote(tc.id))
		if tc.err != "" {
			require.ErrorIs(t, err, ErrInvalidID)
			require.ErrorContains(t, err, tc.err)
			require.ErrorContains(t, err, "stint: invalid id "+spell.Quote(tc.id)+": not of format "+tc.format.String()+": ")
			require.Less(t, len(err.Error()), 500)
			continue
		}
		require.NoError(t, err, "%v %s", tc.format, spell.Quote(tc.id))
		again, err := tc.format.Canonical(got)
		require.NoError(t, err)
		require.Equal(t, got, again, "the canonical spelling is its own")
	}
}

func TestAddresses(t *testing.T) {
	for _, tc := range []struct {
		addr   string
		v4, v6 int // of Prefix
		ip     string
		prefix string
	}{
		{"10.0.0.2", 24, 64, "10.0.0.2", "10.0.0.0/24"},
		{"10.0.0.2", 32, 64, "10.0.0.2", "10.0.0.2/32"},
		{"::ffff:10.0.0.2", 24, 64, "10.0.0.2", "10.0.0.0/24"},
		{"64:ff9b::a00:2%eth0", 24, 64, "10.0.0.2", "10.0.0.0/24"},
		{"64:ff9b:0:0:1::a00:2", 24, 64, "64:ff9b::1:0:a00:2", "64:ff9b::/64"},
		{"::ffff:10.0.0.2%eth0", 32, 56, "10.0.0.2", "10.0.0.2/32"},
		{"2001:0db8:0001:0002:0003::4", 32, 64, "2001:db8:1:2:3::4", "2001:db8:1:2::/64"},
		{"2001:db8:1:2:3::4", 32, 48, "2001:db8:1:2:3::4", "2001:db8:1::/48"},
		{"fe80::1%eth0", 32, 64, "fe80::1", "fe80::/64"},
		{"2001:db8::1", 32, 0, "2001:db8::1", "::/0"},
		{"2001:db8::1", -1, 128, "2001:db8::1", "2001:db8::1/128"},
		{"2001:db8::1", 32, 129, "2001:db8::1", ""},
		{"2001:db8::1", 32, -1, "2001:db8::1", ""},
		{"10.0.0.2", 33, 64, "10.0.0.2", ""},
		{"10.0.0.2", -1, 64, "10.0.0.2", ""},
		{"10.0.0.2", math.MaxInt, 64, "10.0.0.2", ""},
		{"", 24, 64, "", ""}, // an address that could not be parsed has no bucket
		{"", 0, 0, "", ""},
	} {
		addr, _ := netip.ParseAddr(tc.addr)
		require.Equal(t, Key{3, tc.ip}, Name(3).IP(addr), tc.addr)
		require.Equal(t, Key{3, tc.prefix}, Name(3).Prefix(addr, tc.v4, tc.v6), "%s with /%d and /%d", tc.addr, tc.v4, tc.v6)
	}
}

// FuzzParseKey reads every key that Key.String writes, and no other text.
func FuzzParseKey(f *testing.F) {
	long := strings.Repeat("x", 512)
	good := map[string]Key{
		"6:12345678": {6, "12345678"}, "1:": {1, ""}, "65535:2001:db8::1": {65535, "2001:db8::1"}, "7: a\x00": {7, " a\x00"},
		"7:" + long: {7, long},
	}
	for text := range good {
		f.Add(text)
	}
	for _, text := range []string{
		"", ":", ":x", "6", "0:x", "00:x", "06:x", "+6:x", "-6:x", " 6:x", "6 :x", "65536:x", "1_0:x", "0x6:x", "six:x",
		"7:x" + long,
	} {
		_, _, err := spell.ParseKey(text)
		require.ErrorIs(f, err, ErrInvalidID, text)
		f.Add(text)
	}
	_, _, err := spell.ParseKey("06:x")
	require.EqualError(f, err, `stint: invalid id: "06:x" is not a key: want a number from 1 to 65535, a colon and the id`)
	f.Fuzz(func(t *testing.T, text string) {
		name, id, err := spell.ParseKey(text)
		key := Key{Name(name), id}
		if want, ok := good[text]; ok {
			require.NoError(t, err)
			require.Equal(t, want, key)
		}
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidID)
			require.Less(t, len(err.Error()), 250)
			require.Zero(t, key)
			return
		}
		require.Equal(t, text, key.String())
		require.NotZero(t, key.Name)
		require.LessOrEqual(t, len(key.ID), maxIDLen)
	})
}

func TestNamesKey(t *testing.T) {
	names := Names{
		0: {Label: "Zero"},
		1: {Label: "PerIP", IDs: IPAddress},
		2: {Label: "Everyone", IDs: Single},
		3: {Label: "PerUser"},
		4: {Label: "PerPath", IDs: fickle{}},
	}
	for _, tc := range []struct {
		name     Name
		id, want string
		err      error
		text     string
	}{
		{1, "::ffff:10.0.0.2", "10.0.0.2", nil, ""},
		{2, "", "", nil, ""},
		{3, "Alice", "Alice", nil, ""},
		{1, "10.0.0", "", ErrInvalidID,
			`stint: invalid id "10.0.0": not of format ipAddress: want an address such as 10.0.0.1 or 2001:db8::1 (PerIP)`},
		{2, "x", "", ErrInvalidID,
			`stint: invalid id "x": not of format single: there is one bucket for everyone, and its id is empty (Everyone)`},
		{3, "", "", ErrInvalidID, `stint: invalid id "": not of format anyID: it is empty (PerUser)`},
		{4, "x", "", errFickle, `stint: invalid id "x": not of format fickle: not today (PerPath)`},
		{4, "empty", "", ErrInvalidID, `stint: invalid id "empty": not of format fickle: it is empty (PerPath)`},
		{5, "x", "", ErrUnknownName, `stint: unknown name 5, for the id "x"`},
		{0, "x", "", ErrUnknownName, `stint: unknown name 0, for the id "x"`},
	} {
		key, err := names.Key(tc.name, tc.id)
		if tc.err == nil {
			require.NoError(t, err)
			require.Equal(t, Key{tc.name, tc.want}, key)
			continue
		}
		require.ErrorIs(t, err, tc.err)
		require.EqualError(t, err, tc.text)
		require.Equal(t, tc.err != ErrUnknownName, errors.Is(err, ErrInvalidID))
		require.Zero(t, key)
	}
}

func TestNamesMistakes(t *testing.T) {
	require.Empty(t, Names{
		1:     {Label: "A"},
		65535: {Label: "B", IDs: Tuple(number, IPAddress), OverrideIDs: number},
		3:     {Label: "C", IDs: Tuple(number, word, AnyID), OverrideIDs: Tuple(number, word)},
		4:     {Label: "D", IDs: Tuple(number, Tuple(word, AnyID)), OverrideIDs: Tuple(number, word)},
	}.mistakes())

	require.EqualError(t, errors.Join(Names{
		0: {Label: "Zero"},
		1: {Label: "Twice"},
		2: {Label: "Twice"},
		3: {},
		4: {Label: "NoTuple", IDs: number, OverrideIDs: number},
		5: {Label: "NoID", OverrideIDs: number},
		6: {Label: "TooWide", IDs: Tuple(number, word), OverrideIDs: Tuple(number, word)},
	}.mistakes()...), `stint: Zero: Name 0 is no limit: want numbers from 1
stint: Twice: Names 1 and 2 have the same label
stint: Name 3 has no label
stint: NoTuple: OverrideIDs is number: want IDs that are a Tuple, not number
stint: NoID: OverrideIDs is number: want IDs that are a Tuple, not anyID
stint: TooWide: OverrideIDs is tuple(number,word): want fewer parts than the IDs, tuple(number,word), have`)
}

func TestCanonicalOverride(t *testing.T) {
	names := Names{
		1: {Label: "Plain", IDs: IPAddress},
		2: {Label: "Led", IDs: Tuple(word, number), OverrideIDs: word},
		3: {Label: "Other", IDs: Tuple(word, number), OverrideIDs: AnyID},
	}
	for _, tc := range []struct {
		name          Name
		id, want, err string
	}{
		{1, "::ffff:10.0.0.2", "10.0.0.2", ""},
		{1, "x", "", `stint: invalid id "x": not of format ipAddress: want an address such as 10.0.0.1 or 2001:db8::1`},
		{2, "Example", "example", ""},
		{2, "a:b", "", `stint: invalid id "a:b": not of format word: want 1 parts, not 2`},
		{3, "example", "example", ""},
		{3, "Example", "", `stint: invalid id "Example": not of format anyID: part 1, "Example": in an id it is "example"`},
	} {
		got, err := names[tc.name].canonicalOverride(tc.id)
		require.Equal(t, tc.want, got)
		if tc.err != "" {
			require.EqualError(t, err, tc.err)
		} else {
			require.NoError(t, err)
		}
	}
}
