package replay

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/testlength"
)

func TestAccess(t *testing.T) {
	const at = ` [17/May/2015:10:05:03 +0000] `
	for _, c := range []struct {
		name, line, host string
		err              error
	}{
		{"common", `127.0.0.1 - -` + at + `"GET / HTTP/1.0" 200 2326`, "127.0.0.1", nil},
		{"combined", `::1 - -` + at + `"GET / HTTP/1.0" 200 2326 "-" "Mozilla/5.0"`, "::1", nil},
		{"user", `a.example ident frank` + at + `"GET / HTTP/1.0" 200 2326`, "a.example", nil},
		{"no bytes", `h - -` + at + `"GET / HTTP/1.0" 304 -`, "h", nil},
		{"empty request", `h - -` + at + `"" 408 0`, "h", nil},
		{"escaped quote", `h - -` + at + `"GET /\"x\" 200 \\" 404 1`, "h", nil},
		{"cut user agent", `h - -` + at + `"GET /" 404 1 "-" "Moz`, "h", nil},
		{"vhost_combined", `example.com:80 10.0.0.1 - -` + at + `"GET /" 200 1`, "10.0.0.1", nil},
		{"vhost_combined, user", `example.com:80 10.0.0.1 - frank` + at + `"GET /" 200 1`, "10.0.0.1", nil},
		{"user of two words", `10.0.0.1 - Frank Doe` + at + `"GET /" 200 1`, "10.0.0.1", nil},
		{"list", `192.0.2.9, [2001:db8::1]:55013 - -` + at + `"GET /" 200 1`, "192.0.2.9, [2001:db8::1]:55013", nil},
		{"iso time", `h - - [2015-05-17T10:05:03+00:00] "GET /" 200 1`, "h", nil},
		{"python", `h - - [17/May/2015 10:05:03] "GET / HTTP/1.1" 200 -`, "h", nil},

		{"blank", ``, "", errNoFields},
		{"words", `Starting nginx now please`, "", errNoFields},
		{"no host", ` - -` + at + `"GET /" 200 1`, "", errNoFields},
		{"ends in user", `h - -`, "", errNoFields},
		{"ends in bracket", `h - - [`, "", errNoFields},
		{"no zone", `h - - [2015-05-17T10:05:03+00:00Z] "GET /" 200 1`, "h", errFieldTime},
		{"no such day", `h - - [31/Jun/2015:10:05:03 +0000] "GET /" 200 1`, "h", errFieldTime},
		{"before 1970", `h - - [17/May/1969:10:05:03 +0000] "GET /" 200 1`, "h", errFieldTime},
		{"after 2161", `h - - [17/May/9999:10:05:03 +0000] "GET /" 200 1`, "h", errFieldTime},
		{"ends in time", `h - - [17/May/2015:10:05:03 +0000`, "", errNoFields},
		{"ends in request", `h - -` + at + `"GET /`, "", errNoRequest},
		{"ends in escape", `h - -` + at + `"GET /\`, "", errNoRequest},
		{"no request", `h - -` + at + `200 1`, "", errNoRequest},
		{"no status", `h - -` + at + `"GET /"`, "", errNoRequest},
		{"status of letters", `h - -` + at + `"GET /" abc 1`, "", errNoRequest},
		{"no size", `h - -` + at + `"GET /" 200 `, "", errNoRequest},
		{"size of letters", `h - -` + at + `"GET /" 200 x`, "", errNoRequest},
		{"size and more", `h - -` + at + `"GET /" 200 1x "-"`, "", errNoRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := record{names: accessFields}
			err := access(&got, []byte(c.line))
			at := int64(0)
			if err == nil {
				at, err = (&logTime{}).parse(got.field("time"))
			}
			require.ErrorIs(t, err, c.err)
			assert.Equal(t, c.host, string(got.field("ip")))
			if err == nil {
				assert.Equal(t, time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC).UnixNano(), at)
			}
		})
	}
}

func BenchmarkAccess(b *testing.B) {
	line := []byte(`83.149.9.216 - - [17/May/2015:10:05:03 +0000] ` +
		`"GET /presentations/kibana-search.png HTTP/1.1" 200 203023 ` +
		`"http://example.com/" "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 (KHTML, like Gecko)"`)
	b.ReportAllocs()
	var r record
	for b.Loop() {
		if err := access(&r, line); err != nil {
			b.Fatal(err)
		}
	}
}

// Reading a line of an access log allocates nothing.
func TestReadingAllocations(t *testing.T) {
	if testlength.Race {
		t.Skip("the race detector makes package regexp allocate")
	}
	line := []byte(`10.0.0.1 - alice [01/Jan/2020:00:00:00 +0000] "GET /a?b HTTP/1.1" 200 1`)
	for _, by := range []string{"ip", "user", "method", "path"} {
		r, err := (Format{Lines: "access", By: by}).reader(func(string) {})
		require.NoError(t, err)
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			if _, err := r.read(line, nil); err != nil {
				t.Error(err)
			}
		}), by)
	}
}

func TestReading(t *testing.T) {
	const access = `::ffff:10.0.0.1 - alice [17/May/2015:10:05:03 +0000] "GET /a/b?key=7 HTTP/1.1" 200 1`
	const caddy = `{"ts":1431857103.25,"request":{"remote_ip":"10.0.0.1","user":null},` +
		`"user.name":"bob","status":200,"tags":["x"]}`
	const sshd = `May 17 10:05:03 host sshd[42]: Failed password for invalid user root from 10.0.0.1 port 22 ssh2`
	const sshdLines = `^(?P<time>\w+ +\d+ [\d:]+) .* sshd.*: Failed password for (?:invalid user )?` +
		`(?P<user>\S+) from (?P<ip>\S+)(?: key (?P<key>\S+))?`
	for _, c := range []struct {
		format, by, time, line, id string
		err                        error
	}{
		{"access", "ip", "", access, "::ffff:10.0.0.1", nil},
		{"access", "user", "", access, "alice", nil},
		{"access", "method", "", access, "GET", nil},
		{"access", "path", "", access, "/a/b", nil},
		{"access", `/key=(\d+)/`, "", access, "7", nil},
		{"access", `/key=\d+/`, "", access, "key=7", nil},
		{"access", `/lock=(\d+)/`, "", access, "", errNoID},
		{"access", `/(lock)?key/`, "", access, "", errNoID},
		{"access", "user", "", `h - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1`, "", errNoID},
		{"access", "path", "", `h - - [17/May/2015:10:05:03 +0000] "-" 408 0`, "", errNoID},
		{"access", "path", "", `h - - [17/May/2015:10:05:03 +0000]`, "", errNoFields},

		{"json", "request.remote_ip", "ts", caddy, "10.0.0.1", nil},
		{"json", "user.name", "ts", caddy, "bob", nil},
		{"json", "status", "ts", caddy, "200", nil},
		{"json", `/"remote_ip":"([0-9]+)/`, "ts", caddy, "10", nil},
		{"json", "request.user", "ts", caddy, "", errNoID},
		{"json", "request", "ts", caddy, "", errNoID},
		{"json", "tags", "ts", caddy, "", errNoID},
		{"json", "status.code", "ts", caddy, "", errNoID},
		{"json", "nothing", "ts", caddy, "", errNoID},
		{"json", "user.name", "time", caddy, "bob", nil}, // of the field ts
		{"json", "user.name", "user.name", caddy, "", errFieldTime},
		{"json", "user.name", "ts", `["ts"]`, "", errNotJSON},
		{"json", "user.name", "ts", `null`, "", errNotJSON},
		{"json", "user.name", "ts", caddy[1:], "", errNotJSON},

		{sshdLines, "user", "time", sshd, "root", nil},
		{sshdLines, "ip", "time", sshd, "10.0.0.1", nil},
		{sshdLines, `/invalid user (\S+)/`, "time", sshd, "root", nil},
		{sshdLines, "key", "time", sshd, "", errNoID},
		{sshdLines, "ip", "time", "May 17 10:05:03 host sshd[42]: Accepted password for root", "", errNoID},
		{sshdLines, "ip", "user", sshd, "", errFieldTime},
	} {
		f := Format{Lines: c.format, By: c.by, Time: c.time}
		if c.format == sshdLines {
			f.Year = 2015
		}
		r, err := f.reader(func(string) {})
		require.NoError(t, err, c.format)
		e, err := r.read([]byte(c.line), nil)
		require.ErrorIs(t, err, c.err, "by %s of %s", c.by, c.line)
		if err == nil {
			assert.Equal(t, c.id, string(e.id))
			assert.Equal(t, time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC).Unix(), e.at/1e9, c.line)
		}
	}
	for _, f := range []Format{
		{Lines: "access", By: "shoe"}, {Lines: "access", By: "/("}, {Lines: "access", By: "/(/"},
		{Lines: "xml", By: "ip"},
		{Lines: "json", By: "ip", Year: 20150},
		{Lines: "(?P<time>.*", By: "time", Time: "time"}, {Lines: "(?P<ip>.*)", By: "ip", Time: "time"},
		{Lines: "(?P<time>.*)", By: "ip", Time: "time"},
	} {
		_, err := f.reader(func(string) {})
		assert.ErrorContains(t, err, "--", f)
	}
}

// No line makes a format panic, and each has a value for each field at most.
func FuzzFormats(f *testing.F) {
	for _, s := range []string{"", "{", `{"a":{"b":[1]},"c":null}`, "#Fields: a b", "a b", "h - - [x] \"GET /\" 200 1", "a=b c=\"d e\"",
		"<1>1 2026-03-01T09:00:00Z h p 1 - - from ::1", "Mar  1 09:00:01 h last message repeated 5 times", "] [", " [] ",
		"Mar  1 09:00:01 h p: message repeated 5 times: [ from [::1]:5]", "2026/03/01 09:00:01 from unknown[192.0.2.1]"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		for i := range formats {
			r, cut := formats[i].begin()
			for _, line := range []string{one, two} {
				if err := cut(r, unwrapped([]byte(line))); err == nil {
					require.LessOrEqual(t, len(r.values), len(r.names), formats[i].name)
					c := clients{ipv6Bits: 64, note: func(string) {}}
					c.id(nil, r.field("ip"))
				}
			}
		}
		recognize([][]byte{[]byte(one), []byte(two)})
	})
}

// An object deep in others costs no more than one that is as long.
func TestDeepObject(t *testing.T) {
	line := strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000)
	var r record
	require.NoError(t, jsonLine(&r, []byte(line)))
	require.Len(t, r.names, 1)
	require.Less(t, len(r.names[0]), 30)
}

func TestEachLine(t *testing.T) {
	oneLong := strings.Repeat("x", 100_000)
	longest := strings.Repeat("y", maxLine)
	tooLong := strings.Repeat("z", maxLine+1)
	text := "one\r\n\n" + oneLong + "\n" + tooLong + "\n" + strings.Repeat("z", 3*maxLine) + "\n" + longest + "\ntwo"
	want := []string{"one", "", oneLong, "TOO LONG", "TOO LONG", longest, "two"}

	var zipped bytes.Buffer
	for _, part := range []string{text[:50_000], text[50_000:]} { // members, as after `cat a.gz b.gz`
		zw := gzip.NewWriter(&zipped)
		_, err := io.WriteString(zw, part)
		require.NoError(t, err)
		require.NoError(t, zw.Close())
	}
	for name, in := range map[string]io.Reader{
		"plain": strings.NewReader(text),
		"gzip":  &zipped,
		"pipe":  iotest.HalfReader(strings.NewReader(text)),
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			require.NoError(t, eachLine(t.Context(), in, func(number int, line []byte, _ func() []byte, err error) error {
				assert.Equal(t, len(got)+1, number)
				if err == errLineTooLong {
					line = []byte("TOO LONG")
				} else if len(got) == len(want)-1 {
					assert.Equal(t, errUnended, err)
				} else {
					assert.NoError(t, err)
				}
				got = append(got, string(line))
				return nil
			}))
			assert.True(t, assert.ObjectsAreEqual(want, got), "%d lines", len(got))
		})
	}

	t.Run("nothing", func(t *testing.T) {
		require.NoError(t, eachLine(t.Context(), strings.NewReader(""), func(int, []byte, func() []byte, error) error { panic("no line") }))
	})
	t.Run("cut gzip", func(t *testing.T) {
		var b bytes.Buffer
		zw := gzip.NewWriter(&b)
		_, _ = io.WriteString(zw, text)
		require.NoError(t, zw.Close())
		err := eachLine(t.Context(), bytes.NewReader(b.Bytes()[:b.Len()-4]), func(int, []byte, func() []byte, error) error { return nil })
		require.ErrorIs(t, err, errCutOff)
	})
	t.Run("byte order mark", func(t *testing.T) {
		var got []string
		require.NoError(t, eachLine(t.Context(), strings.NewReader("\ufeffa\n\ufeffb\ufeff\n"),
			func(_ int, line []byte, _ func() []byte, _ error) error { got = append(got, string(line)); return nil }))
		assert.Equal(t, []string{"a", "b\ufeff"}, got)
	})
	t.Run("interrupted", func(t *testing.T) {
		silent, _ := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := eachLine(ctx, silent, func(int, []byte, func() []byte, error) error { return nil })
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestLogTime(t *testing.T) {
	want := time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC).UnixNano()
	for s, more := range map[string]int64{
		"17/May/2015:12:05:03 +0200": 0, "2015-05-17T10:05:03Z": 0, "2015-05-17T12:05:03.25+02:00": 250e6,
		"2015-05-17T12:05:03+0200": 0, "2015-05-17 10:05:03": 0, "2015-05-17 10:05:03.000000001": 1,
		"2015-05-17T10:05:03": 0, "1431857103": 0, "1431857103.": 0,
		"1431857103.5": 500e6, "1431857103250": 250e6, "1431857103250.125": 250125000, "1431857103000001": 1000,
		"1431857103000000001": 1, "1431857103.00000000199": 1, "May 17 10:05:03": 0,
	} {
		at, err := (&logTime{year: 2015}).parse([]byte(s))
		assert.NoError(t, err, s)
		assert.Equal(t, want+more, at, s)
	}
	for _, s := range []string{"", "soon", "-1431857103", "1431857103.x", "1431857103.5m", "1431857103.5s1",
		"99999999999999999999", "7258118400000000000", "17/May/2015", "0001-01-01T00:00:00Z", "2162-01-01T00:00:00Z"} {
		_, err := (&logTime{}).parse([]byte(s))
		assert.Error(t, err, s)
	}
	for _, c := range []struct {
		layout, text string
		ok           bool
		want         int64
	}{
		{"02.01.2006 15h04", "17.05.2015 10h05", true, want - 3e9},
		{"02.01.2006 15h04", "1431857103", false, 0},
		{"2006-01-02 15:04:05 MST", "2015-05-17 10:05:03 UTC", true, want},
		{"2006-01-02 15:04:05 MST", "2015-05-17 10:05:03 GMT", true, want},
		{"2006-01-02 15:04:05 MST", "2015-05-17 10:05:03 XYZT", false, want}, // package time takes it for UTC
	} {
		at, err := (&logTime{layout: c.layout}).parse([]byte(c.text))
		assert.Equal(t, c.ok, err == nil, c.text)
		assert.True(t, err != nil || at == c.want, c.text)
	}

	// The year changes if the log passes New Year, also for a line that is late
	// there.
	inLog := &logTime{year: 2023}
	var years []int
	for _, s := range []string{"Dec 31 23:59:58", "Jan  1 00:00:00", "Dec 31 23:59:59", "Jan  1 00:00:01",
		"Feb 29 12:00:00", "Aug  1 00:00:00", "Jan  2 00:00:00"} {
		at, err := inLog.parse([]byte(s))
		require.NoError(t, err)
		years = append(years, time.Unix(0, at).UTC().Year())
	}
	assert.Equal(t, []int{2023, 2024, 2023, 2024, 2024, 2024, 2025}, years)

	// The first line is of the last year that had the date.
	week := time.Now().UTC().AddDate(0, 0, -7)
	at, err := (&logTime{}).parse([]byte(week.Format(syslogLayout)))
	require.NoError(t, err)
	assert.Equal(t, week.Unix(), at/1e9)
	at, err = (&logTime{}).parse([]byte("Feb 29 09:00:00"))
	require.NoError(t, err)
	assert.Equal(t, "02-29", time.Unix(0, at).UTC().Format("01-02"))
}

// A line that has another field in place of the one that was asked for does not
// rename it for the others.
func TestFieldOfOneLine(t *testing.T) {
	var notes []string
	r, err := Format{Lines: "json", By: "ip", Time: "time"}.reader(func(note string) { notes = append(notes, note) })
	require.NoError(t, err)
	for _, line := range []string{
		`{"time":"2026-03-01T09:00:00Z","client":"10.0.0.1"}`,
		`{"time":"2026-03-01T09:00:01Z","ip":"10.0.0.1","client":"mobile"}`,
		`{"time":"2026-03-01T09:00:02Z","remote_ip":"10.0.0.1"}`,
		`{"ts":1772355604.5,"ip":"10.0.0.1"}`,
		`{"time":"2026-03-01T09:00:05Z","ip":"10.0.0.1"}`,
	} {
		e, err := r.read([]byte(line), nil)
		require.NoError(t, err, line)
		require.Equal(t, "10.0.0.1", string(e.id), line)
	}
	require.Equal(t, []string{"ip is the field client", "time is the field ts"}, notes)
}
