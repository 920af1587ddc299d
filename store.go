package stint

import (
	"io"
	"iter"
	"slices"
	"time"

	"github.com/stint-go/stint/internal/cache"
	fileformat "github.com/stint-go/stint/internal/format"
)

// Store keeps buckets between runs. One Limiter owns it, and calls it from
// several goroutines. Package storetest tests whether a Store does what is asked
// of it here, and has an example of one. A Store may also be a FileStore: a wrapper
// must forward those methods too, or what they enable is lost.
//
// Holds are kept under the Name Unknown, which no limit can have: the id is the
// held bucket's key as text, and the TAT is the end of the hold. The entry with
// the empty id is no hold: its TAT is the time of the last save. The iterator
// All may leave it out.
type Store interface {
	// Declare adds the names of the Limiter's limits. New and SetLimits call
	// it. The error is ErrNameMismatch if the Store has another label for a
	// number, or another number for a label. A Store without labels returns nil:
	// then nothing notices that a number has got another meaning.
	Declare(names Names) error

	// Load returns the TAT that was last saved for the key, or 0.
	Load(key Key) (tat int64, err error)

	// Save carries out all of the changes or none, and returns nil when they are
	// durable. No two changes have the same key. Save may reorder the slice, but
	// keeps neither the slice nor anything that it points to. Without changes,
	// Save returns nil if the next process would find everything that was saved.
	Save(changes []Change) error

	// All yields every bucket stored under the name, in the order of the ids'
	// bytes, except that ids that consist of stars may come elsewhere. A bucket
	// that is saved during the loop may be missing. An error is the last thing
	// yielded.
	All(name Name) iter.Seq2[Change, error]

	// Maintain does a small part of the Store's upkeep. The Limiter calls it
	// after each periodic flush, with the time of its own clock. A failure must
	// show in Health.
	Maintain(now time.Time) error

	// Health returns what is wrong with the Store now, or nil. It must not
	// wait.
	Health() error

	// Stats describe the Store's file. They are zero if it has none.
	Stats() FileStats

	// Snapshot writes a copy of the Store's file, and returns its length. It is
	// an error if there is no file.
	Snapshot(w io.Writer) (int64, error)

	// Close releases what the Store holds. It saves nothing.
	Close() error
}

// FileStore is a Store that knows the clock of its last save, and what becomes of
// its file. The Stores of OpenBolt and NewMemStore are such. Without it, the time
// between two processes counts only if the clock is right, a save has up to some
// thousand buckets, and Limiter.InPlace returns nil, so that hostlimit's server does
// not notice that the file has gone.
type FileStore interface {
	// LoadClock returns the record of the clock that was last saved, or nil: which
	// boot of the machine saved last, and when it booted. With it, time goes on over
	// processes that live for milliseconds.
	LoadClock() ([]byte, error)

	// SaveClock returns nil when the record, of less than 100 bytes, is durable.
	SaveClock(record []byte) error

	// Room returns about how many buckets the next Save should have, and at least 1.
	// While the Store is busy with its own upkeep that is few, so that decisions that
	// wait for space in memory get it sooner. Room must not wait.
	Room() int

	// InPlace returns nil if the file is at its path, or if there is no file. Otherwise
	// the error is ErrGone, and fs.ErrNotExist if the path has no file. It reads
	// nothing. Save returns the same errors, and has saved the changes in the file that
	// the Store has open. If the path has no file, Close puts that file back, or returns
	// an error.
	InPlace() error
}

var _, _ FileStore = (*boltStore)(nil), (*memStore)(nil)

// Change is the state of one bucket: its TAT in Unix nanoseconds, or 0 if there
// is no such bucket.
type Change struct {
	Key Key
	TAT int64
}

// FileStats describe the file of a Store.
type FileStats struct {
	Format    int   // number of the format: docs/format.md
	Bytes     int64 // of the file
	Free      int64 // bytes in free pages
	Journal   int64 // bytes of the journal, about
	Journaled int64 // buckets whose newest TAT is in the journal
}

// storeForCache returns the functions of a store as the cache calls them.
func storeForCache(store Store) cache.Store {
	if s, ok := store.(*boltStore); ok {
		return cache.Store{
			Load: s.store.Load, Save: s.store.Save, All: s.store.All, Maintain: s.store.Maintain,
			LoadClock: s.store.LoadClock, SaveClock: s.store.SaveClock, Room: s.store.Room,
		}
	}
	var changes []Change // memory for the next Save: the cache calls one at a time
	s := cache.Store{
		Load: func(name uint16, id string) (int64, error) { return store.Load(Key{Name(name), id}) },
		Save: func(entries []fileformat.Entry) error {
			changes = slices.Grow(changes[:0], len(entries))
			for _, e := range entries {
				changes = append(changes, Change{Key{Name(e.Name), e.ID}, e.TAT})
			}
			defer clear(changes)
			return store.Save(changes)
		},
		All: func(name uint16) iter.Seq2[fileformat.Entry, error] {
			return func(yield func(fileformat.Entry, error) bool) {
				for c, err := range store.All(Name(name)) {
					if !yield(fileformat.Entry{Name: uint16(c.Key.Name), ID: c.Key.ID, TAT: c.TAT}, err) {
						return
					}
				}
			}
		},
		Maintain: store.Maintain,
	}
	if f, ok := store.(FileStore); ok {
		s.LoadClock, s.SaveClock, s.Room = f.LoadClock, f.SaveClock, f.Room
	}
	return s
}
