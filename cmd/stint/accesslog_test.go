package main

import (
	"bufio"
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
)

func TestParseLogLine(t *testing.T) {
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

		{"blank", ``, "", errNoFields},
		{"words", `Starting nginx now please`, "", errNoFields},
		{"no host", ` - -` + at + `"GET /" 200 1`, "", errNoFields},
		{"a virtual host before it", `example.com:80 10.0.0.1 - -` + at + `"GET /" 200 1`, "", errNoFields},
		{"ends in user", `h - -`, "", errNoFields},
		{"ends in bracket", `h - - [`, "", errLogTime},
		{"iso time", `h - - [2015-05-17T10:05:03+00:00Z] "GET /" 200 1`, "", errLogTime},
		{"no such day", `h - - [31/Jun/2015:10:05:03 +0000] "GET /" 200 1`, "", errLogTime},
		{"before 1970", `h - - [17/May/1969:10:05:03 +0000] "GET /" 200 1`, "", errLogTime},
		{"after 2161", `h - - [17/May/9999:10:05:03 +0000] "GET /" 200 1`, "", errLogTime},
		{"ends in time", `h - - [17/May/2015:10:05:03 +0000`, "", errLogTime},
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
			got, err := parseLogLine([]byte(c.line))
			require.ErrorIs(t, err, c.err)
			assert.Equal(t, c.host, string(got.host))
			if err == nil {
				assert.Equal(t, time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC).Unix(), got.unix)
			}
		})
	}
}

// FuzzParseLogTime: what parseLogTime takes, time.Parse takes for the same instant; and it takes what time.Format
// writes.
func FuzzParseLogTime(f *testing.F) {
	for _, s := range []string{
		"17/May/2015:10:05:03 +0000", "29/Feb/2016:23:59:59 -0730", "29/Feb/2015:00:00:00 +0000", "31/Dec/2161:23:59:59 +1400",
		"00/Jan/2015:00:00:00 +0000", "1 /Jan/2015:00:00:00 +0000", "01/Jan/2015:24:00:00 +0000", "01/Jan/2015:00:00:60 +0000",
		"01/jan/2015:00:00:00 +0000", "01/anF/2015:00:00:00 +0000", "01/Jan/2015:00:00:00  0000", "01/Jan/2015:00:00:00 +2400",
	} {
		f.Add(s, int64(1431857103), 3600)
	}
	f.Fuzz(func(t *testing.T, s string, unix int64, zone int) {
		if got, ok := parseLogTime([]byte(s)); ok {
			want, err := time.Parse(logTimeLayout, s)
			require.NoError(t, err, s)
			require.Equal(t, want.Unix(), got, s)
		}
		unix, zone = (unix%6e9+6e9)%6e9+86400, zone%(23*60)*60
		s = time.Unix(unix, 0).In(time.FixedZone("", zone)).Format(logTimeLayout)
		got, ok := parseLogTime([]byte(s))
		require.True(t, ok, s)
		require.Equal(t, unix, got, s)
	})
}

func TestEachLine(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	longest := strings.Repeat("y", maxLine-1)
	tooLong := strings.Repeat("z", 3*maxLine)
	text := "one\r\n\n" + long + "\n" + tooLong + "\n" + longest + "\ntwo"
	want := []string{"one", "", long, "TOO LONG", longest, "two"}

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
			require.NoError(t, eachLine(t.Context(), in, func(number int, line []byte, err error) error {
				assert.Equal(t, len(got)+1, number)
				if err != nil {
					assert.ErrorIs(t, err, errLineTooLong)
					line = []byte("TOO LONG")
				}
				got = append(got, string(line))
				return nil
			}))
			assert.True(t, assert.ObjectsAreEqual(want, got), "%d lines", len(got))
		})
	}

	t.Run("bounded", func(t *testing.T) {
		line, _, err := readLong(bufio.NewReader(strings.NewReader(tooLong)), nil)
		require.ErrorIs(t, err, io.EOF)
		assert.Less(t, len(line), 2*maxLine)
	})
	t.Run("nothing", func(t *testing.T) {
		require.NoError(t, eachLine(t.Context(), strings.NewReader(""), func(int, []byte, error) error { panic("no line") }))
	})
	t.Run("cut gzip", func(t *testing.T) {
		var b bytes.Buffer
		zw := gzip.NewWriter(&b)
		_, _ = io.WriteString(zw, text)
		require.NoError(t, zw.Close())
		err := eachLine(t.Context(), bytes.NewReader(b.Bytes()[:b.Len()-4]), func(int, []byte, error) error { return nil })
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	})
	t.Run("interrupted", func(t *testing.T) {
		silent, _ := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := eachLine(ctx, silent, func(int, []byte, error) error { return nil })
		require.ErrorIs(t, err, context.Canceled)
	})
}

func BenchmarkParseLogLine(b *testing.B) {
	line := []byte(`83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /presentations/kibana-search.png HTTP/1.1" 200 203023 ` +
		`"http://example.com/" "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 (KHTML, like Gecko)"`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseLogLine(line); err != nil {
			b.Fatal(err)
		}
	}
}
