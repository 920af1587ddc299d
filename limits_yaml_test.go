package stint

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var fixtureNames = Names{
	1: {Label: "NewRegistrationsPerIPAddress", ID: IPAddress},
	2: {Label: "NewRegistrationsPerIPv6Range", ID: IPv6Range},
	5: {Label: "CertificatesPerFQDNSet", ID: FQDNSet},
	6: {Label: "NewOrdersPerAccount", ID: RegID},
	7: {
		Label:    "FailedAuthorizationsPerDomainPerAccount",
		ID:       Tuple(RegID, AnyOf(Hostname, IPAddress)),
		Override: RegID,
	},
	9: {Label: "RequestsInTotal", ID: Shared},
}

const fixtures = "testdata/limits/"

func TestLoadLimitsFixtures(t *testing.T) {
	files, err := filepath.Glob(fixtures + "*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		file = filepath.ToSlash(file)
		load := func() (*Limits, error) { return LoadLimits(fixtureNames, fixtures+"ok_defaults.yml", file) }
		if strings.Contains(file, "_defaults") {
			load = func() (*Limits, error) { return LoadLimits(fixtureNames, file) }
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			ls, err := load()
			if strings.HasPrefix(file, fixtures+"ok_") {
				require.NoError(t, err)
				require.NotNil(t, ls)
				return
			}
			require.True(t, strings.HasPrefix(file, fixtures+"bad_"), "neither an ok_ nor a bad_ file")
			require.Nil(t, ls)
			require.Error(t, err)
			var got []string
			for line := range strings.SplitSeq(err.Error(), "\n") {
				require.True(t, strings.HasPrefix(line, file+":"), line)
				got = append(got, strings.TrimSpace(line[len(file)+1:]))
			}
			require.Equal(t, readOpeningComment(t, file), got)
		})
	}
}

// readOpeningComment returns the lines of the comment that a file opens with.
func readOpeningComment(t *testing.T, file string) (lines []string) {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		comment, ok := strings.CutPrefix(line, "#")
		if !ok {
			break
		}
		lines = append(lines, strings.TrimSpace(comment))
	}
	return lines
}

func TestLoadLimits(t *testing.T) {
	ls, err := LoadLimits(fixtureNames, fixtures+"ok_defaults.yml", fixtures+"ok_overrides.yml")
	require.NoError(t, err)

	orders := Limit{Burst: 300, Count: 300, Period: 3 * time.Hour, Queue: 50, Durability: Leased}
	moreOrders := Limit{Burst: 300, Count: 600, Period: 3 * time.Hour, Durability: Synced}
	for _, tc := range []struct {
		key  Key
		want Limit
	}{
		{Key{1, "10.0.0.1"}, PerSecond(20)},
		{Key{1, "10.0.0.2"}, PerSecond(40).WithBurst(20)},
		{Key{1, "10.0.0.5"}, PerSecond(40).WithBurst(20)},
		{Key{1, "2001:db8::ff00:42:8329"}, PerSecond(40).WithBurst(20)},
		{Key{2, "2001:db8::/48"}, Limit{Burst: 2, Count: 2, Period: 3 * time.Hour}},
		{Key{2, "2001:db9::/48"}, Limit{}},
		{Key{5, hash("2001:db8::1,a.example,b.example")}, Limit{Burst: 2, Count: 2, Period: 3 * time.Hour}},
		{Key{6, "1"}, orders},
		{Key{6, "12345678"}, moreOrders},
		{Key{6, "87654321"}, moreOrders},
		{Key{7, "1234:example.com"}, Limit{Burst: 60, Count: 60, Period: 3 * time.Second}},
		{Key{7, "12345:example.com"}, Limit{}},
		{Key{9, ""}, Limit{Burst: 1000, Count: 100000, Period: 24 * time.Hour, Durability: Memory}},
	} {
		got, ok := ls.For(tc.key)
		require.Equal(t, tc.want, got, tc.key)
		require.Equal(t, tc.want != Limit{}, ok, tc.key)
	}
}

func TestLoadLimitsOfOtherFixtures(t *testing.T) {
	ls, err := LoadLimits(fixtureNames, fixtures+"ok_defaults_none.yml", fixtures+"ok_overrides_shared.yml")
	require.NoError(t, err)
	_, ok := ls.For(Key{6, "1"})
	require.False(t, ok)
	l, ok := ls.For(Key{9, ""})
	require.True(t, ok)
	require.Equal(t, PerDay(200000).WithBurst(2000), l)

	ls, err = LoadLimits(fixtureNames, fixtures+"ok_defaults_periods.yml", fixtures+"ok_overrides_empty.yml")
	require.NoError(t, err)
	for _, tc := range []struct {
		key  Key
		want time.Duration
	}{
		{Key{1, "10.0.0.1"}, (9*24 + 12) * time.Hour},
		{Key{2, "2001:db8::/48"}, 14 * 24 * time.Hour},
		{Key{6, "1"}, 36 * time.Hour},
		{Key{5, hash("a.example")}, 90 * time.Minute},
		{Key{7, "1:a.example"}, 90 * 24 * time.Hour},
	} {
		l, _ := ls.For(tc.key)
		require.Equal(t, tc.want, l.Period, tc.key)
	}
}

func TestLoadLimitsReportsAllFiles(t *testing.T) {
	_, err := LoadLimits(fixtureNames, fixtures+"absent.yml", fixtures+"bad_overrides_zero.yml", "testdata",
		fixtures+"bad_overrides_not_a_list.yml")
	require.ErrorIs(t, err, os.ErrNotExist)
	lines := strings.Split(err.Error(), "\n")
	require.Equal(t, "testdata/limits/absent.yml: no such file or directory", lines[0])
	require.Equal(t, "testdata/limits/bad_overrides_zero.yml:3: NewOrdersPerAccount: count is 0, want at least 1", lines[1])
	require.Regexp(t, "^testdata: ", lines[2])
	require.Equal(t, "testdata/limits/bad_overrides_not_a_list.yml:2: the file is a mapping, want a list of overrides", lines[3])

	var first *ConfigError
	require.ErrorAs(t, err, &first)
	require.Equal(t, "testdata/limits/absent.yml", first.File)
}

func TestParseLimitsReportsAllSources(t *testing.T) {
	override := "- NewOrdersPerAccount: {burst: 1, count: 1, period: 1s, ids: [12345678]}"
	_, err := ParseLimits(fixtureNames, []byte("a: 1"), []byte(override), []byte("\n"+override), []byte("{"))
	require.EqualError(t, err, `defaults:1: a: unknown name: the program declares no limit with this label
defaults:1: a: the limit is "1", want a mapping with burst, count and period
overrides 2:2: NewOrdersPerAccount: the id "12345678" is given twice, first at overrides:1
overrides 3:1: not YAML: did not find expected node content`)
	require.ErrorIs(t, err, ErrUnknownName)

	_, err = ParseLimits(fixtureNames, []byte("{}"), []byte("- NewOrdersPerAccount: {burst: 1, count: 1, period: 1s, ids: [x]}"))
	require.ErrorIs(t, err, ErrInvalidID)

	_, err = ParseLimits(fixtureNames, []byte("{}\n---\n{"))
	require.EqualError(t, err, "defaults:3: not YAML: did not find expected node content")

	_, err = ParseLimits(Names{0: {Label: "A"}}, []byte("{"))
	require.EqualError(t, err, "stint: A: Name 0 is no limit: want numbers from 1")
}

// TestLoadBoulder loads Boulder's own files, which are not part of this repository.
func TestLoadBoulder(t *testing.T) {
	const dir = "../shared/data/limits/"
	if _, err := os.Stat(dir); err != nil {
		t.Skip("Boulder's limits files are not here: ", err)
	}
	account := Tuple(RegID, AnyOf(Hostname, IPAddress))
	names := Names{
		1: {Label: "NewRegistrationsPerIPAddress", ID: IPAddress},
		2: {Label: "NewRegistrationsPerIPv6Range", ID: IPv6Range},
		3: {Label: "CertificatesPerDomain", ID: AnyOf(Domain, Hostname, IPAddress)},
		4: {Label: "CertificatesPerDomainPerAccount", ID: account, Override: RegID},
		5: {Label: "CertificatesPerFQDNSet", ID: FQDNSet},
		6: {Label: "NewOrdersPerAccount", ID: RegID},
		7: {Label: "FailedAuthorizationsPerDomainPerAccount", ID: account, Override: RegID},
		8: {Label: "FailedAuthorizationsForPausingPerDomainPerAccount", ID: account, Override: RegID},
	}
	hours := func(n int64, period time.Duration) Limit {
		return Limit{Burst: n, Count: n, Period: period * time.Hour}
	}
	for _, tc := range []struct {
		defaults, overrides string
		key                 Key
		want                Limit
	}{
		{"boulder-defaults", "boulder-overrides", Key{6, "1"}, hours(1500, 3)},
		{"boulder-defaults", "boulder-overrides", Key{1, "64.112.117.1"}, hours(1000000, 168)},
		{"boulder-defaults", "boulder-overrides", Key{3, "ecdsa.le.wtf"}, hours(10000, 2160)},
		{"boulder-defaults", "boulder-overrides", Key{5, hash("le.wtf,le1.wtf")}, hours(10000, 168)},
		{"boulder-defaults", "boulder-overrides", Key{8, "1:example.com"}, PerDay(1).WithBurst(3600)},
		{"boulder-defaults", "boulder-working_override_13371338", Key{4, "13371338:example.com"}, hours(1337, 2160)},
		{"boulder-defaults", "boulder-working_override_13371338", Key{4, "1:example.com"}, Limit{}},
		{"boulder-working_defaults", "boulder-working_overrides", Key{2, "2602:80a:6000::/48"}, PerSecond(50)},
		{"boulder-working_defaults", "boulder-working_overrides", Key{8, "5678:::1"}, PerSecond(60)},
		{"boulder-working_defaults", "boulder-working_overrides_regid_fqdnset",
			Key{5, hash("2602:80a:6000::1,9.9.9.9,example.com")}, PerSecond(60)},
		{"documented-defaults", "documented-overrides", Key{6, "12345678"}, hours(600, 3).WithBurst(300)},
		{"documented-defaults", "documented-overrides", Key{6, "1"}, hours(300, 3)},
	} {
		ls, err := LoadLimits(names, dir+tc.defaults+".yml", dir+tc.overrides+".yml")
		require.NoError(t, err)
		got, _ := ls.For(tc.key)
		if tc.want.Period == time.Second { // these files differ in their periods only to be told apart
			tc.want.Period = got.Period
		}
		require.Equal(t, tc.want, got, "%s, %v", tc.overrides, tc.key)
	}
}

func TestParsePeriod(t *testing.T) {
	const day = 24 * time.Hour
	for _, tc := range []struct {
		text string
		want time.Duration
	}{
		{"90s", 90 * time.Second}, {"180m", 3 * time.Hour}, {"1h30m", 90 * time.Minute}, {"1ns", 1}, {"0", 0},
		{"1d", day}, {"2w", 14 * day}, {"1w2d12h", 9*day + 12*time.Hour}, {"1.5d", 36 * time.Hour}, {"1w1m", 7*day + time.Minute},
		{"9223372036854775807ns", math.MaxInt64}, {"106751d23h47m16.854775807s", math.MaxInt64},
	} {
		got, err := parsePeriod(tc.text)
		require.NoError(t, err, tc.text)
		require.Equal(t, tc.want, got, tc.text)
	}
	for _, text := range []string{
		"", " ", "1", "d", "w", "1 d", "-1d", "+1d", "-1s", "+1s", "1d-1s", "1d+1s", "1d1w", "1h1d", "1w1", "1d1d", "1ww",
		"1m1w", "1.1.1d", "1e3s", "1D", "1mo", "15251w", "106752d", "106751d24h", "9223372036854775808ns", "2562047h48m",
		"99999999999999999999d", strings.Repeat("9", 1000),
	} {
		_, err := parsePeriod(text)
		require.ErrorContains(t, err, "want a duration such as 90s", text)
		require.ErrorContains(t, err, "period is "+quote(text))
	}
}

func FuzzParsePeriod(f *testing.F) {
	for _, s := range []string{"1w2d12h", "1.5d", "180m", "1h1d", "-5m", "106751d24h", "0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parsePeriod(s)
		if err != nil {
			require.Zero(t, d)
			return
		}
		require.GreaterOrEqual(t, d, time.Duration(0))
		again, err := parsePeriod(shortPeriod(d))
		require.NoError(t, err)
		require.Equal(t, d, again)
		if plain, err := time.ParseDuration(s); err == nil {
			require.Equal(t, plain, d)
		}
	})
}

func FuzzParseLimits(f *testing.F) {
	files, err := filepath.Glob(fixtures + "*")
	require.NoError(f, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte("A: &x {burst: *x, <<: *x}\n...\n---\n"))
	defaults, err := os.ReadFile(fixtures + "ok_defaults.yml")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range []func() (*Limits, error){
			func() (*Limits, error) { return ParseLimits(fixtureNames, data) },
			func() (*Limits, error) { return ParseLimits(fixtureNames, defaults, data) },
		} {
			ls, err := parse()
			require.Equal(t, ls == nil, err != nil)
			if err != nil {
				var mistake *ConfigError
				require.ErrorAs(t, err, &mistake)
				require.NotEmpty(t, mistake.File, "found by NewLimits, without a line: %v", err)
				continue
			}
			for _, r := range ls.rules[1:] {
				require.NoError(t, r.limit.Validate())
			}
		}
	})
}
