package stint

import (
	"io"
	"iter"
	"time"
)

// Store is where buckets live between runs. It is owned by one Limiter, which calls it from several goroutines.
//
// Holds are kept under the Name Unknown, which no limit can have: the id is the held bucket's key as text, and the TAT
// is the end of the hold.
type Store interface {
	// Load returns what was last saved for the key: 0 where there is nothing.
	Load(key Key) (tat int64, err error)

	// Save carries out all of the changes, or none, and returns nil once they are durable. No two are of one key.
	// It may reorder them, and keeps neither the slice nor anything it points to.
	Save(changes []Change) error

	// All yields every bucket stored under the name, in the order of the ids' bytes, except that ids of nothing but stars
	// may come elsewhere. What is saved meanwhile may be missing. An error is the last thing yielded.
	All(name Name) iter.Seq2[Change, error]

	Declare(names Names) error
	Maintain(now time.Time) error
	Health() error
	Stats() FileStats
	Snapshot(w io.Writer) (int64, error)

	// Close lets go of what the Store holds. It saves nothing.
	Close() error
}

// Change is the state of one bucket: its TAT in Unix nanoseconds, or 0 where there is no such bucket.
type Change struct {
	Key Key
	TAT int64
}
