package stint

import (
	"errors"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Store is where buckets live between runs. It is owned by one Limiter, which
// calls it from several goroutines. A wrapper may embed a Store.
//
// Holds are kept under the Name Unknown, which no limit can have: the id is the
// held bucket's key as text, and the TAT is the end of the hold.
type Store interface {
	// Declare enters the names of the Limiter's limits: in New and in
	// SetLimits. The error is ErrNameMismatch if the Store knows a number or a
	// label by another meaning.
	Declare(names Names) error

	// Load returns the TAT that was last saved for the key, or 0.
	Load(key Key) (tat int64, err error)

	// Save carries out all of the changes or none, and returns nil when they
	// are durable. No two are of one key. It may reorder them. It keeps neither
	// the slice nor anything that the slice points to. With no changes it returns
	// nil if what was saved is still where the next process looks for it.
	Save(changes []Change) error

	// All yields every bucket stored under the name, in the order of the ids'
	// bytes, except that ids of nothing but stars may come elsewhere. What is
	// saved meanwhile may be missing. An error is the last thing yielded.
	All(name Name) iter.Seq2[Change, error]

	// Maintain does a small part of the Store's upkeep. The Limiter calls it
	// after each flush, with the time of its own clock. A failure must show in
	// Health.
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

// Change is the state of one bucket: its TAT in Unix nanoseconds, or 0 if there
// is no such bucket.
type Change struct {
	Key Key
	TAT int64
}

// MemStore is a Store in memory: for tests, for simulations, and for limits
// that need not outlive the process. It outlives its Limiter: after Close it
// may be given to the next one, as a file would be.
type MemStore struct {
	mu   sync.Mutex
	tats map[Key]int64
}

// NewMemStore returns an empty MemStore.
func NewMemStore() *MemStore { return &MemStore{tats: make(map[Key]int64)} }

// Load implements Store.
func (s *MemStore) Load(key Key) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tats[key], nil
}

// Save implements Store.
func (s *MemStore) Save(changes []Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		if c.TAT == 0 {
			delete(s.tats, c.Key)
		} else {
			s.tats[Key{c.Key.Name, strings.Clone(c.Key.ID)}] = c.TAT
		}
	}
	return nil
}

// All implements Store.
func (s *MemStore) All(name Name) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		s.mu.Lock()
		tats := maps.Clone(s.tats)
		s.mu.Unlock()
		maps.DeleteFunc(tats, func(k Key, _ int64) bool { return k.Name != name })
		for _, key := range slices.SortedFunc(maps.Keys(tats), Key.compare) {
			if !yield(Change{key, tats[key]}, nil) {
				return
			}
		}
	}
}

// Declare implements Store. A MemStore takes all names.
func (s *MemStore) Declare(Names) error { return nil }

// Maintain implements Store. A MemStore needs no upkeep.
func (s *MemStore) Maintain(time.Time) error { return nil }

// Health implements Store. A MemStore has nothing that could fail.
func (s *MemStore) Health() error { return nil }

// Stats implements Store. A MemStore has no file.
func (s *MemStore) Stats() FileStats { return FileStats{} }

// Snapshot implements Store. A MemStore has no file to copy.
func (s *MemStore) Snapshot(io.Writer) (int64, error) {
	return 0, errors.New("stint: a MemStore has no file to copy")
}

// Close implements Store.
func (s *MemStore) Close() error { return nil }
