package rules

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// logLines collects the lines of a logger, without their time. slog calls Write
// one after the other.
type logLines struct{ lines []string }

func (l *logLines) Write(p []byte) (int, error) {
	l.lines = append(l.lines, strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// require requires the new lines.
func (l *logLines) require(t *testing.T, want ...string) {
	t.Helper()
	require.Equal(t, want, l.lines)
	l.lines = nil
}

func (l *logLines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// denialOf returns a denial of the bucket with an id.
func denialOf(id string) Decision {
	d := Decision{Label: "login"}
	d.Key, d.RetryAfter = ofA.Key(id), 12*time.Second
	return d
}

// line is the line of a denial.
func line(id string, leftOut int) string {
	return fmt.Sprintf(`level=WARN msg="request denied" limit=login id=%s retry_after=12s shadow=false left_out=%d`,
		id, leftOut)
}

func TestLogDenials(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, out *logLines, log func(ds ...Decision)){
		"one line a bucket in each time": func(t *testing.T, out *logLines, log func(ds ...Decision)) {
			for range 3 {
				log(denialOf("a"))
			}
			log(denialOf("b"))
			out.require(t, line("a", 0), line("b", 0))
			time.Sleep(time.Minute - 1)
			log(denialOf("a"))
			out.require(t)
			time.Sleep(time.Nanosecond)
			log(denialOf("a"), denialOf("b"))
			out.require(t, line("a", 3), line("b", 0))
		},
		"allowed and shadow": func(t *testing.T, out *logLines, log func(ds ...Decision)) {
			allowed, shadow := denialOf("a"), denialOf("b")
			allowed.Allowed, shadow.Shadow = true, true
			log(allowed, shadow)
			out.require(t, `level=INFO msg="request denied" limit=login id=b retry_after=12s shadow=true left_out=0`)
		},
		"too many buckets": func(t *testing.T, out *logLines, log func(ds ...Decision)) {
			for i := range maxDenialLines + 500 {
				log(denialOf(fmt.Sprint(i)))
			}
			require.Len(t, out.lines, maxDenialLines+1)
			require.Equal(t, `level=WARN msg="requests of more ids denied" left_out=1`, out.lines[maxDenialLines])
			out.lines = nil
			time.Sleep(time.Minute)
			log(denialOf("new")) // the old ones are forgotten
			out.require(t, line("new", 0))
		},
		"a bucket that is forgotten": func(t *testing.T, out *logLines, log func(ds ...Decision)) {
			for range 50 {
				log(denialOf("a"))
			}
			time.Sleep(time.Minute)
			for i := range maxDenialLines + 1 { // the last but one forgets a, and the last finds no room
				log(denialOf(fmt.Sprint(i)))
			}
			require.Len(t, out.lines, 1+maxDenialLines+1)
			require.Equal(t, `level=WARN msg="requests of more ids denied" left_out=50`, out.lines[1+maxDenialLines])
			out.lines = nil
			time.Sleep(time.Minute)
			log(denialOf("a"))
			out.require(t, line("a", 0))
		},
		"concurrent": func(t *testing.T, out *logLines, log func(ds ...Decision)) {
			var all sync.WaitGroup
			for range 4000 {
				all.Go(func() { log(denialOf("a")) })
			}
			all.Wait()
			out.require(t, line("a", 0))
			time.Sleep(time.Minute)
			log(denialOf("a"))
			out.require(t, line("a", 3999))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out logLines
				observer := LogDenials[req](out.logger(), time.Minute)
				f(t, &out, func(ds ...Decision) { observer.Decisions(req{ctx: t.Context()}, ds) })
			})
		})
	}
	// An id may be a part of a header field of a megabyte.
	t.Run("keeps no request in memory", func(t *testing.T) {
		header := strings.Repeat("id=0123456789; ", 9)
		begin := uintptr(unsafe.Pointer(unsafe.StringData(header)))
		var out logLines
		log := &denialLog{logger: out.logger(), every: time.Minute, lines: make(map[stint.Key]*denialLine)}
		for n := range 9 {
			log.add(t.Context(), []Decision{denialOf(header[15*n+3:][:10]), denialOf(header[n:][:12])})
		}
		for key := range log.lines {
			inside := uintptr(unsafe.Pointer(unsafe.StringData(key.ID)))-begin < uintptr(len(header))
			require.False(t, inside, key.ID)
		}
	})
	t.Run("door", func(t *testing.T) {
		var out logLines
		opts := &Options[req]{Observers: []Observer[req]{LogDenials[req](out.logger(), time.Hour)}}
		d := New(newLimiter(t), opts, rule(ofA, Rule[req, int]{Cost: 5}))
		for range 3 {
			d.Begin(req{ctx: t.Context()})
		}
		out.require(t, `level=WARN msg="request denied" limit=a id=x retry_after=1h0m0s shadow=false left_out=0`)
	})
	t.Run("mistakes", func(t *testing.T) {
		require.Panics(t, func() { LogDenials[req](nil, time.Second) })
		require.Panics(t, func() { LogDenials[req](slog.Default(), 0) })
	})
}
