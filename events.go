package stint

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/stint-go/stint/internal/cache"
	"github.com/stint-go/stint/internal/clock"
	"github.com/stint-go/stint/internal/events"
)

// Event reports something to an operator when it happens. Health and Stats
// report it too.
type Event struct {
	Kind EventKind
	Time time.Time // by the Limiter's clock
	Err  error     // what is wrong; nil of FlushRecovered and FileBack; of SaveEnded, how the save ended
	Path string    // of FileSetAside: the file's new path
}

// LogValue implements slog.LogValuer. The group has "kind" and "time", and "error"
// and "path" if the Event has them.
func (e Event) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("kind", e.Kind.String()), slog.Time("time", e.Time)}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	if e.Path != "" {
		attrs = append(attrs, slog.String("path", e.Path))
	}
	return slog.GroupValue(attrs...)
}

// EventKind says what an Event is about.
type EventKind uint8

// The kinds of events.
const (
	FlushFailed    EventKind = iota + 1 // the first failure in a row
	FlushRecovered                      // a flush succeeded after one that failed
	ClockStepped                        // the wall clock was set, or the machine slept
	FileSetAside                        // Open renamed a corrupt file, as Options.SetAsideCorrupt asks
	SaveOverdue                         // a save, or upkeep, takes longer than CommitTimeout
	SaveEnded                           // an overdue save, or upkeep, ended
	FileGone                            // the file is not at its path: ErrGone
	FileBack                            // the file, or a new one with all buckets, is there
	ClockWrong                          // Open does not believe the wall clock; Health reports it while that lasts
)

var eventKinds = [...]string{
	FlushFailed: "flush failed", FlushRecovered: "flush recovered",
	ClockStepped: "clock stepped", ClockWrong: "clock wrong", FileSetAside: "file set aside",
	SaveOverdue: "save overdue", SaveEnded: "overdue save ended", FileGone: "file gone", FileBack: "file back",
}

// String returns what happened, in two or three words.
func (k EventKind) String() string {
	if k > 0 && int(k) < len(eventKinds) {
		return eventKinds[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// emitter says what happens in a Limiter.
type emitter struct {
	clock *clock.Clock
	queue *events.Queue[Event] // nil without a listener, and until Open tells it
	gone  bool                 // the last save returned ErrGone; the cache calls one at a time
}

func (es *emitter) emit(e Event) {
	e.Time = time.Unix(0, es.clock.Now())
	es.queue.Add(e)
}

// tell returns the functions by which the cache says what happens.
func (es *emitter) tell() cache.Tell {
	return cache.Tell{
		Failed:    func(err error) { es.emit(Event{Kind: FlushFailed, Err: err}) },
		Recovered: func() { es.emit(Event{Kind: FlushRecovered}) },
		Overdue:   func(err error) { es.emit(Event{Kind: SaveOverdue, Err: err}) },
		Ended:     func(err error) { es.emit(Event{Kind: SaveEnded, Err: err}) },
		Called:    es.called,
		Stepped: func(step time.Duration) {
			es.emit(Event{Kind: ClockStepped, Err: fmt.Errorf("stint: the wall clock stepped by %v", step)})
		},
	}
}

// called notes how a call of the store ended. Only a save finds out that the file
// is back.
func (es *emitter) called(saved bool, err error) {
	if gone := errors.Is(err, ErrGone); gone && !es.gone {
		es.gone = true
		es.emit(Event{Kind: FileGone, Err: err})
	} else if es.gone && err == nil && saved {
		es.gone = false
		es.emit(Event{Kind: FileBack})
	}
}
