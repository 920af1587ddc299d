package rules

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// LogDenials returns an observer that logs denials: at most one line for a
// bucket in the time every, which a flood of denials cannot exceed. The line
// has the limit, the id, how long the client should wait, and left_out, the
// number of denials of the bucket since its last line. It is a warning, or of
// level Info for a Shadow rule, which stopped no request.
//
// At most 10,000 buckets are remembered. If others are denied in the time
// every, one line for all of them has only left_out, with the numbers of buckets
// that were forgotten. LogDenials panics if logger is nil, or every is not
// positive.
func LogDenials[R Request](logger *slog.Logger, every time.Duration) Observer[R] {
	if logger == nil || every <= 0 {
		panic("rules: LogDenials: want a logger, and a time of more than 0")
	}
	log := &denialLog{logger: logger, every: every, lines: make(map[stint.Key]*denialLine)}
	return Observer[R]{Decisions: func(r R, ds []Decision) { log.add(r.Context(), ds) }}
}

// maxDenialLines is how many buckets a denialLog remembers.
const maxDenialLines = 10_000

type denialLog struct {
	logger *slog.Logger
	every  time.Duration

	mu     sync.Mutex // guards the following; not held while a line is written
	lines  map[stint.Key]*denialLine
	others denialLine // of buckets that are not in lines, or not any more
}

// denialLine is the last line of a bucket.
type denialLine struct {
	next    time.Time // no line before
	leftOut int64     // denials since
}

func (l *denialLog) add(ctx context.Context, ds []Decision) {
	for i := range ds {
		d := &ds[i]
		if d.Allowed {
			continue
		}
		level := slog.LevelWarn
		if d.Shadow {
			level = slog.LevelInfo
		}
		known, leftOut, due := l.due(d.Key)
		switch {
		case !due:
		case known:
			l.logger.LogAttrs(ctx, level, "request denied", slog.String("limit", d.Label),
				slog.String("id", d.Key.ID), slog.Duration("retry_after", d.RetryAfter),
				slog.Bool("shadow", d.Shadow), slog.Int64("left_out", leftOut))
		default:
			l.logger.LogAttrs(ctx, level, "requests of more ids denied",
				slog.Int64("left_out", leftOut+1)) // with this one
		}
	}
}

// due counts a denial, and reports whether a line is due: the bucket's if it is
// known, or else that of all others.
func (l *denialLog) due(key stint.Key) (known bool, leftOut int64, due bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	line, known := l.lines[key]
	if !known && len(l.lines) >= maxDenialLines && !now.Before(l.others.next) {
		maps.DeleteFunc(l.lines, func(_ stint.Key, line *denialLine) bool {
			over := !now.Before(line.next)
			if over {
				l.others.leftOut += line.leftOut
			}
			return over
		})
	}
	switch {
	case known:
	case len(l.lines) >= maxDenialLines:
		line = &l.others
	default:
		key.ID = strings.Clone(key.ID) // it may be a part of a long header field
		line, known = new(denialLine), true
		l.lines[key] = line
	}
	if now.Before(line.next) {
		line.leftOut++
		return known, 0, false
	}
	leftOut, *line = line.leftOut, denialLine{next: now.Add(l.every)}
	return known, leftOut, true
}
