package rules

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint"
)

// logLines collects the lines of a logger, without their time.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

func (l *logLines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
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

// denial returns a denial of the bucket with an id.
func denialOf(id string) Decision {
	d := Decision{Label: "login"}
	d.Key, d.RetryAfter = ofA.Key(id), 12*time.Second
	return d
}

func TestLogDenials(t *testing.T) {
	const line = `level=WARN msg="request denied" limit=login id=%s retry_after=12s shadow=false left_out=%d`
	t.Run("one line a bucket in each time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var out logLines
			log := LogDenials[req](out.logger(), time.Minute).Decisions
			r := req{ctx: context.Background()}
			for range 3 {
				log(r, []Decision{denialOf("a")})
			}
			log(r, []Decision{denialOf("b")})
			assert.Equal(t, []string{fmt.Sprintf(line, "a", 0), fmt.Sprintf(line, "b", 0)}, out.take())
			time.Sleep(time.Minute - 1)
			log(r, []Decision{denialOf("a")})
			assert.Empty(t, out.take())
			time.Sleep(time.Nanosecond)
			log(r, []Decision{denialOf("a"), denialOf("b")})
			assert.Equal(t, []string{fmt.Sprintf(line, "a", 3), fmt.Sprintf(line, "b", 0)}, out.take())
		})
	})
	t.Run("allowed and shadow", func(t *testing.T) {
		var out logLines
		log := LogDenials[req](out.logger(), time.Minute).Decisions
		allowed, shadow := denialOf("a"), denialOf("b")
		allowed.Allowed, shadow.Shadow = true, true
		log(req{ctx: context.Background()}, []Decision{allowed, shadow})
		assert.Equal(t, []string{
			`level=INFO msg="request denied" limit=login id=b retry_after=12s shadow=true left_out=0`,
		}, out.take())
	})
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
	t.Run("too many buckets", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var out logLines
			log := LogDenials[req](out.logger(), time.Minute).Decisions
			r := req{ctx: context.Background()}
			for i := range maxDenialLines + 500 {
				log(r, []Decision{denialOf(fmt.Sprint(i))})
			}
			lines := out.take()
			require.Len(t, lines, maxDenialLines+1)
			assert.Equal(t, `level=WARN msg="requests of more ids denied" left_out=1`, lines[maxDenialLines])
			time.Sleep(time.Minute)
			log(r, []Decision{denialOf("new")}) // the old ones are forgotten
			assert.Equal(t, []string{fmt.Sprintf(line, "new", 0)}, out.take())
		})
	})
	t.Run("concurrent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var out logLines
			var denied atomic.Int64
			log := LogDenials[req](out.logger(), time.Hour).Decisions
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 500 {
						log(req{ctx: context.Background()}, []Decision{denialOf("a")})
						denied.Add(1)
					}
				})
			}
			all.Wait()
			assert.Len(t, out.take(), 1)
			time.Sleep(time.Hour)
			log(req{ctx: context.Background()}, []Decision{denialOf("a")})
			assert.Equal(t, []string{fmt.Sprintf(line, "a", denied.Load()-1)}, out.take())
		})
	})
	t.Run("door", func(t *testing.T) {
		var out logLines
		opts := &Options[req]{Observers: []Observer[req]{LogDenials[req](out.logger(), time.Hour)}}
		d := New(newLimiter(t), opts, rule(ofA, Rule[req, int]{Cost: 5}))
		for range 3 {
			d.Begin(req{ctx: t.Context()})
		}
		assert.Equal(t, []string{
			`level=WARN msg="request denied" limit=a id=x retry_after=1h0m0s shadow=false left_out=0`,
		}, out.take())
	})
	t.Run("mistakes", func(t *testing.T) {
		assert.Panics(t, func() { LogDenials[req](nil, time.Second) })
		assert.Panics(t, func() { LogDenials[req](slog.Default(), 0) })
	})
}
