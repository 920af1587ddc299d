package storetest_test

import (
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/stint-go/stint"
)

// gobStore is a Store in one file, which each Save writes anew: for a few
// thousand buckets.
type gobStore struct {
	path string
	mu   sync.Mutex
	tats map[stint.Key]int64
}

func openGob(path string) (*gobStore, error) {
	s := &gobStore{path: path, tats: make(map[stint.Key]int64)}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	return s, gob.NewDecoder(f).Decode(&s.tats)
}

func (s *gobStore) Load(key stint.Key) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tats[key], nil
}

func (s *gobStore) Save(changes []stint.Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.tats)
	for _, c := range changes {
		if next[c.Key] = c.TAT; c.TAT == 0 {
			delete(next, c.Key)
		}
	}
	f, err := os.Create(s.path + ".tmp")
	if err != nil {
		return err
	}
	err = errors.Join(gob.NewEncoder(f).Encode(next), f.Sync(), f.Close())
	if err = cmp.Or(err, os.Rename(s.path+".tmp", s.path)); err == nil {
		s.tats = next
	}
	return err
}

func (s *gobStore) All(name stint.Name) iter.Seq2[stint.Change, error] {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []stint.Change
	for key, tat := range s.tats {
		if key.Name == name {
			all = append(all, stint.Change{Key: key, TAT: tat})
		}
	}
	slices.SortFunc(all, func(a, b stint.Change) int { return cmp.Compare(a.Key.ID, b.Key.ID) })
	return func(yield func(stint.Change, error) bool) {
		for _, c := range all {
			if !yield(c, nil) {
				return
			}
		}
	}
}

func (s *gobStore) Declare(stint.Names) error         { return nil }
func (s *gobStore) Maintain(time.Time) error          { return nil }
func (s *gobStore) Health() error                     { return nil }
func (s *gobStore) Stats() stint.FileStats            { return stint.FileStats{} }
func (s *gobStore) Snapshot(io.Writer) (int64, error) { return 0, errors.ErrUnsupported }
func (s *gobStore) Close() error                      { return nil }

// A program may bring a Store of its own. storetest.Run tests this one, too.
func Example() {
	dir, err := os.MkdirTemp("", "stint")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	const Logins stint.Name = 1
	limits, err := stint.NewLimits(stint.Names{Logins: {Label: "Logins", Limit: stint.PerDay(3)}})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 { // the second run goes on where the first ended
		store, err := openGob(filepath.Join(dir, "logins.gob"))
		if err != nil {
			log.Fatal(err)
		}
		limiter, err := stint.New(store, limits, nil)
		if err != nil {
			log.Fatal(err)
		}
		for range 2 {
			d, err := limiter.Spend(Logins.Key("alice"), 1)
			fmt.Println(d.Allowed, d.Remaining, err)
		}
		if err := limiter.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// true 2 <nil>
	// true 1 <nil>
	// true 0 <nil>
	// false 0 <nil>
}
