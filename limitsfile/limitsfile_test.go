package limitsfile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // for machines without a database of time zones

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
	"github.com/stint-go/stint/idformat"
)

// names has the limits in the files of testdata. The Limit fields have no effect.
var names = stint.Names{
	1: {Label: "NewRegistrationsPerIPAddress", IDs: stint.IPAddress, Limit: stint.PerSecond(1)},
	2: {Label: "NewRegistrationsPerIPv6Range", IDs: idformat.IPv6Range, Limit: stint.PerSecond(1)},
	5: {Label: "CertificatesPerFQDNSet", IDs: idformat.FQDNSet},
	6: {Label: "NewOrdersPerAccount", IDs: idformat.RegID, Limit: stint.PerSecond(1)},
	7: {
		Label:       "FailedAuthorizationsPerDomainPerAccount",
		IDs:         stint.Tuple(idformat.RegID, idformat.AnyOf(idformat.Hostname, stint.IPAddress)),
		OverrideIDs: idformat.RegID,
	},
	9: {Label: "RequestsInTotal", IDs: stint.Single},
}

const dir = "testdata/"

func hash(list string) string {
	sum := sha256.Sum256([]byte(list))
	return hex.EncodeToString(sum[:])
}

// TestLoad loads every file of testdata. A file whose name begins with bad_
// must begin with a comment that lists its errors.
func TestLoad(t *testing.T) {
	files, err := filepath.Glob(dir + "*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		file = filepath.ToSlash(file)
		sources := []string{dir + "ok_defaults.yml", file}
		if strings.Contains(file, "_defaults") {
			sources = sources[1:]
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			ls, err := Load(names, sources[0], sources[1:]...)
			if strings.HasPrefix(file, dir+"ok_") {
				require.NoError(t, err)
				require.NotNil(t, ls)
				return
			}
			require.True(t, strings.HasPrefix(file, dir+"bad_"), "neither an ok_ nor a bad_ file")
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
	t.Run("all files", func(t *testing.T) {
		_, err := Load(names, dir+"absent.yml", dir+"bad_overrides_zero.yml", "testdata", dir+"bad_overrides_not_a_list.yml")
		require.ErrorIs(t, err, os.ErrNotExist)
		lines := strings.Split(err.Error(), "\n")
		require.Equal(t, "testdata/absent.yml: no such file or directory", lines[0])
		require.Equal(t, "testdata/bad_overrides_zero.yml:3: NewOrdersPerAccount: count is 0, want at least 1", lines[1])
		require.Regexp(t, "^testdata: ", lines[2])
		require.Equal(t, "testdata/bad_overrides_not_a_list.yml:2: the file is a mapping, want a list of overrides", lines[3])

		var first *stint.ConfigError
		require.ErrorAs(t, err, &first)
		require.Equal(t, "testdata/absent.yml", first.File)
	})
}

// readOpeningComment returns the lines of a file's first comment.
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

func TestLoadedLimits(t *testing.T) {
	orders := stint.Limit{Burst: 300, Count: 300, Period: 3 * time.Hour, Queue: 50, Durability: stint.Leased}
	moreOrders := stint.Limit{Burst: 300, Count: 600, Period: 3 * time.Hour, Durability: stint.Synced}
	twice := stint.Limit{Burst: 2, Count: 2, Period: 3 * time.Hour}
	quota := func(text string, level stint.Durability) stint.Limit {
		l, err := stint.ParseLimit(text)
		require.NoError(t, err)
		l.Durability = level
		return l
	}
	every := func(period time.Duration) stint.Limit { return stint.Limit{Burst: 1, Count: 1, Period: period} }
	for _, tc := range []struct {
		defaults, overrides string
		key                 stint.Key
		want                stint.Limit // zero: off
	}{
		{"", "", stint.Name(1).Key("10.0.0.1"), stint.PerSecond(20)},
		{"", "", stint.Name(1).Key("10.0.0.2"), stint.PerSecond(40).WithBurst(20)},
		{"", "", stint.Name(1).Key("10.0.0.5"), stint.PerSecond(40).WithBurst(20)},
		{"", "", stint.Name(1).Key("2001:db8::ff00:42:8329"), stint.PerSecond(40).WithBurst(20)},
		{"", "", stint.Name(2).Key("2001:db8::/48"), twice},
		{"", "", stint.Name(2).Key("2001:db9::/48"), stint.Limit{}},
		{"", "", stint.Name(5).Key(hash("2001:db8::1,a.example,b.example")), twice},
		{"", "", stint.Name(6).Key("1"), orders},
		{"", "", stint.Name(6).Key("12345678"), moreOrders},
		{"", "", stint.Name(6).Key("87654321"), moreOrders},
		{"", "", stint.Name(7).Key("1234:example.com"), stint.Limit{Burst: 60, Count: 60, Period: 3 * time.Second}},
		{"", "", stint.Name(7).Key("12345:example.com"), stint.Limit{}},
		{"", "", stint.Name(9).Key(""), stint.Limit{Burst: 1000, Count: 100000, Period: 24 * time.Hour,
			Durability: stint.Memory}},
		{"_none", "_shared", stint.Name(6).Key("1"), stint.Limit{}},
		{"_none", "_shared", stint.Name(9).Key(""), stint.PerDay(200000).WithBurst(2000)},
		{"_periods", "_empty", stint.Name(1).Key("10.0.0.1"), every((9*24 + 12) * time.Hour)},
		{"_periods", "_empty", stint.Name(2).Key("2001:db8::/48"), every(14 * 24 * time.Hour)},
		{"_periods", "_empty", stint.Name(6).Key("1"), every(36 * time.Hour)},
		{"_periods", "_empty", stint.Name(5).Key(hash("a.example")), every(90 * time.Minute)},
		{"_periods", "_empty", stint.Name(7).Key("1:a.example"), every(90 * 24 * time.Hour)},
		{"", "_groups", stint.Name(6).Key("1"), stint.PerMinute(10)},
		{"", "_groups", stint.Name(6).Key("2"), stint.PerMinute(10)},
		{"", "_groups", stint.Name(6).Key("3"), stint.Blocked},
		{"", "_groups", stint.Name(6).Key("4"), orders},
		{"", "_groups", stint.Name(7).Key("2:example.com"), stint.Limit{}},
		{"", "_groups", stint.Name(1).Key("10.0.0.7"), stint.Blocked},
		{"_calendar", "_calendar", stint.Name(1).Key("10.0.0.1"), quota("50/day@America/Los_Angeles", 0)},
		{"_calendar", "_calendar", stint.Name(6).Key("9"), quota("1000/month@Europe/Berlin from 4h", stint.Leased)},
		{"_calendar", "_calendar", stint.Name(6).Key("1"), quota("20/week@+05:30", 0)},
		{"_calendar", "_calendar", stint.Name(6).Key("2"), quota("700000000000/year", 0)},
		{"_calendar", "_calendar", stint.Name(9).Key(""), quota("7/hour from 15m", 0)},
	} {
		ls, err := Load(names, dir+"ok_defaults"+tc.defaults+".yml", dir+"ok_overrides"+tc.overrides+".yml")
		require.NoError(t, err)
		require.Equal(t, cmp.Or(tc.want, stint.Unlimited), ls.For(tc.key), "%s, %v", tc.defaults, tc.key)
	}
}

func TestParse(t *testing.T) {
	override := "- NewOrdersPerAccount: {burst: 1, count: 1, period: 1s, ids: [12345678]}"
	for _, tc := range []struct {
		names     stint.Names
		sources   []string
		want      string
		wantError error
	}{
		{names, []string{"a: 1", override, "\n" + override, "{"},
			`defaults:1: a: unknown name: the program declares no limit with this label
defaults:1: a: the limit is "1", want a mapping with burst, count and period
overrides 2:2: NewOrdersPerAccount: the id "12345678" is given twice, first at overrides:1
overrides 3:1: not YAML: did not find expected node content`, stint.ErrUnknownName},
		{names, []string{"{}", "- NewOrdersPerAccount: {burst: 1, count: 1, period: 1s, ids: [x]}"},
			`overrides:1: NewOrdersPerAccount: invalid id "x": not of format regId: ` +
				"want a decimal number below 2⁶⁴ without leading zeros", stint.ErrInvalidID},
		{names, []string{"{}\n---\n{"}, "defaults:3: not YAML: did not find expected node content", nil},
		{stint.Names{0: {Label: "A"}}, []string{"{"}, "stint: A: Name 0 is no limit: want numbers from 1", nil},
	} {
		var overrides [][]byte
		for _, text := range tc.sources[1:] {
			overrides = append(overrides, []byte(text))
		}
		_, err := Parse(tc.names, []byte(tc.sources[0]), overrides...)
		require.EqualError(t, err, tc.want)
		if tc.wantError != nil {
			require.ErrorIs(t, err, tc.wantError)
		}
	}
	_, err := Parse(names, []byte("NewOrdersPerAccount: {burst: 9223372036854775807, count: 0, period: 0s}"))
	require.ErrorContains(t, err, "count is 0", "a count of 0 is not Unlimited")
}

// An error of the YAML parser has the line of the mistake, though the parser
// itself names an earlier line, or none in the first line.
func TestSyntaxLine(t *testing.T) {
	for text, want := range map[string]string{
		"@\n":                         "defaults:1: not YAML: found character that cannot start any token",
		"\n\n@\n":                     "defaults:3: not YAML: found character that cannot start any token",
		"a: {b: 1, c: 2\nd: 3}\n":     "defaults:2: not YAML: did not find expected ',' or '}'",
		"a:\n  b: 1\n  c: 2\n  - d\n": "defaults:4: not YAML: did not find expected key",
		"\n\na:\n  b: 1\n c: 2\n":     "defaults:5: not YAML: did not find expected key",
		"\n- a\n- b\nc: d\n":          "defaults:4: not YAML: did not find expected '-' indicator",
		"# a\n\n# M\xfcller\nb: c\n":  "defaults:3: not YAML: invalid leading UTF-8 octet",
		"a: b\nc: \x01\n":             "defaults:2: not YAML: control characters are not allowed",
		"a: b\nc: *d\n":               "defaults:2: not YAML: unknown anchor 'd' referenced",
		"a: b\nc2\n\n# d\n\ne: f\n":   "defaults:2: not YAML: could not find expected ':'",
		"a:\n\tb: 1\n":                "defaults:2: not YAML: the line is indented with a tab, want spaces",
		"a:\n  b: 1\n \tc: 2\n":       "defaults:3: not YAML: the line is indented with a tab, want spaces",
		"a:\n- b\n\t- c\n":            "defaults:3: not YAML: the line is indented with a tab, want spaces",
		"%YAML 1.2\n---\n{}\n":        "defaults:1: not YAML: leave out the line %YAML, or write %YAML 1.1",
		"a: {\n":                      "defaults:1: not YAML: did not find expected node content",
		"a: \"b\n\nc: d\n":            "defaults:3: not YAML: found unexpected end of stream",
	} {
		_, err := Parse(names, []byte(text))
		require.EqualError(t, err, want, "%q", text)
	}
}

// lastLabel is a list of public suffixes that has only top-level domains.
type lastLabel struct{}

func (lastLabel) PublicSuffix(domain string) string {
	return domain[strings.LastIndexByte(domain, '.')+1:]
}

// TestLoadBoulder loads Boulder's own files, which are not part of this
// repository. BOULDER_LIMITS is the directory that has copies of them.
func TestLoadBoulder(t *testing.T) {
	dir := os.Getenv("BOULDER_LIMITS")
	if dir == "" {
		t.Skip("BOULDER_LIMITS is not set")
	}
	account := stint.Tuple(idformat.RegID, idformat.AnyOf(idformat.Hostname, stint.IPAddress))
	names := stint.Names{
		1: {Label: "NewRegistrationsPerIPAddress", IDs: stint.IPAddress},
		2: {Label: "NewRegistrationsPerIPv6Range", IDs: idformat.IPv6Range},
		3: {Label: "CertificatesPerDomain", IDs: idformat.AnyOf(idformat.Domain(lastLabel{}), idformat.Hostname, stint.IPAddress)},
		4: {Label: "CertificatesPerDomainPerAccount", IDs: account, OverrideIDs: idformat.RegID},
		5: {Label: "CertificatesPerFQDNSet", IDs: idformat.FQDNSet},
		6: {Label: "NewOrdersPerAccount", IDs: idformat.RegID},
		7: {Label: "FailedAuthorizationsPerDomainPerAccount", IDs: account, OverrideIDs: idformat.RegID},
		8: {Label: "FailedAuthorizationsForPausingPerDomainPerAccount", IDs: account, OverrideIDs: idformat.RegID},
	}
	hours := func(n int64, period time.Duration) stint.Limit {
		return stint.Limit{Burst: n, Count: n, Period: period * time.Hour}
	}
	for _, tc := range []struct {
		defaults, overrides string
		key                 stint.Key
		want                stint.Limit
	}{
		{"boulder-defaults", "boulder-overrides", stint.Name(6).Key("1"), hours(1500, 3)},
		{"boulder-defaults", "boulder-overrides", stint.Name(1).Key("64.112.117.1"), hours(1000000, 168)},
		{"boulder-defaults", "boulder-overrides", stint.Name(3).Key("ecdsa.le.wtf"), hours(10000, 2160)},
		{"boulder-defaults", "boulder-overrides", stint.Name(5).Key(hash("le.wtf,le1.wtf")), hours(10000, 168)},
		{"boulder-defaults", "boulder-overrides", stint.Name(8).Key("1:example.com"), stint.PerDay(1).WithBurst(3600)},
		{"boulder-defaults", "boulder-working_override_13371338", stint.Name(4).Key("13371338:example.com"),
			hours(1337, 2160)},
		{"boulder-defaults", "boulder-working_override_13371338", stint.Name(4).Key("1:example.com"), stint.Limit{}},
		{"boulder-working_defaults", "boulder-working_overrides", stint.Name(2).Key("2602:80a:6000::/48"),
			stint.PerSecond(50)},
		{"boulder-working_defaults", "boulder-working_overrides", stint.Name(8).Key("5678:::1"), stint.PerSecond(60)},
		{"boulder-working_defaults", "boulder-working_overrides_regid_fqdnset",
			stint.Name(5).Key(hash("2602:80a:6000::1,9.9.9.9,example.com")), stint.PerSecond(60)},
		{"documented-defaults", "documented-overrides", stint.Name(6).Key("12345678"), hours(600, 3).WithBurst(300)},
		{"documented-defaults", "documented-overrides", stint.Name(6).Key("1"), hours(300, 3)},
	} {
		ls, err := Load(names, filepath.Join(dir, tc.defaults+".yml"), filepath.Join(dir, tc.overrides+".yml"))
		require.NoError(t, err)
		got := ls.For(tc.key)
		if tc.want.Period == time.Second { // the periods only tell these files apart
			tc.want.Period = got.Period
		}
		require.Equal(t, tc.want, got, "%s, %v", tc.overrides, tc.key)
	}
}

func TestLabels(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	defaults := file("defaults.yml", "Orders: {burst: 1, count: 1, period: 1m}\n"+
		"Logins: {burst: 1, count: 1, period: 1m}\n")
	overrides := file("overrides.yml", "- Logins: {burst: 2, count: 1, period: 1m, ids: [a]}\n"+
		"- group: pro\n  limits: {Exports: {burst: 2, count: 1, period: 1m}}\n  ids: [a]\n"+
		"- Exports: {burst: 3, count: 1, period: 1m, ids: [b]}\n")

	labels, err := Labels(defaults, overrides)
	require.NoError(t, err)
	require.Equal(t, []string{"Orders", "Logins", "Exports"}, labels)

	names := stint.Names{}
	for i, label := range labels {
		names[stint.Name(i+1)] = stint.NameSpec{Label: label}
	}
	_, err = Load(names, defaults, overrides)
	require.NoError(t, err, "the labels are all that Load wants declared")

	for name, text := range map[string]string{
		"empty": "", "not YAML": "a: [\n", "a scalar": "a", "a list of scalars": "- a\n- b\n", "null": "null\n",
		"odd labels": "? [a]\n: b\n\"\": c\n", "two documents": "---\n...\n",
		"groups without limits": "- group: pro\n- {group: pro, limits: []}\n",
	} {
		labels, err := Labels(file("bad.yml", text))
		require.NoError(t, err, name)
		require.Empty(t, labels, name)
	}
	labels, err = Labels(file("group_in_defaults.yml", "Orders: {burst: 1, count: 1, period: 1m}\ngroup: pro\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"Orders", "group"}, labels, "only a list has groups")

	_, err = Labels(defaults, filepath.Join(dir, "missing.yml"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob(dir + "*")
	require.NoError(f, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte("A: &x {burst: *x, <<: *x}\n...\n---\n"))
	f.Add([]byte("NewOrdersPerAccount: {burst: 9223372036854775807, count: 0, period: 0s}\n"))
	defaults, err := os.ReadFile(dir + "ok_defaults.yml")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range []func() (*stint.Limits, error){
			func() (*stint.Limits, error) { return Parse(names, data) },
			func() (*stint.Limits, error) { return Parse(names, defaults, data) },
		} {
			ls, err := parse()
			require.Equal(t, ls == nil, err != nil)
			if err != nil {
				var mistake *stint.ConfigError
				require.ErrorAs(t, err, &mistake)
				require.NotEmpty(t, mistake.File, "found by NewLimits, without a line: %v", err)
				continue
			}
			for name := range names {
				if spec, _ := ls.Spec(name); spec.Limit != (stint.Limit{}) {
					require.NoError(t, spec.Limit.Validate())
				}
				for o := range ls.Overrides(name) {
					require.NoError(t, o.Limit.Validate(), o.Key)
				}
			}
		}
	})
}
