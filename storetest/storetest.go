// Package storetest is the contract of a stint.Store, as tests. Run it from a
// test of your own Store.
package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stint-go/stint"
)

const maxIDLen = 512

// trickyIDs are ids that an encoding may confuse: with one another, or with
// what a store has for itself.
var trickyIDs = []string{
	"", "*", "**", "***", "*!", "!", "a", "a*", "*a", "ab", "aa", "A", "ä", ":", "a:b", "1:a", "2:", "0", "meta",
	"holds", "format",
	"\x00", "\x00\x00", "a\x00", "\xff", "\xff\xff", "\n", " ", "1", "10", "2",
	strings.Repeat("*", maxIDLen), strings.Repeat("x", maxIDLen), strings.Repeat("x", maxIDLen-1),
	strings.Repeat("\xff", maxIDLen),
}

// Run tests what every Store must do, and what a FileStore must do besides. open
// returns an empty Store, which Run closes.
func Run(t *testing.T, open func(t *testing.T) stint.Store) {
	for _, c := range []struct {
		name string
		run  func(*store)
	}{
		{"nothing", testNothing},
		{"ids", testIDs},
		{"values", testValues},
		{"save replaces, adds and deletes in one step", testOneStep},
		{"what is saved is copied", testSavedCopied},
		{"what is read is copied", testReadCopied},
		{"all of many, while saved to", testAllWhileSaved},
		{"from many goroutines", testGoroutines},
		{"snapshot", testSnapshot},
		{"names", testNames},
		{"clock", testClock},
		{"room", testRoom},
		{"file in place", testInPlace},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &store{open(t), t}
			defer func() { s.ok(s.Close()) }()
			s.ok(s.Declare(stint.Names{1: {Label: "one"}, 2: {Label: "two"}}))
			s.ok(s.Health())
			c.run(s)
			s.ok(s.Health())
		})
	}
}

// store is the Store of one test.
type store struct {
	stint.Store
	t *testing.T
}

func (s *store) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *store) equal(want, got any) {
	s.t.Helper()
	if !reflect.DeepEqual(want, got) {
		s.t.Fatalf("want %v\n got %v", want, got)
	}
}

func (s *store) save(changes ...stint.Change) {
	s.t.Helper()
	s.ok(s.Save(changes))
}

func (s *store) load(key stint.Key) int64 {
	s.t.Helper()
	tat, err := s.Load(key)
	s.ok(err)
	return tat
}

// all returns what the store has under a name.
func (s *store) all(name stint.Name) []stint.Change { s.t.Helper(); return s.collect(s.All(name)) }

func (s *store) collect(seq iter.Seq2[stint.Change, error]) (all []stint.Change) {
	s.t.Helper()
	for c, err := range seq {
		s.ok(err)
		all = append(all, c)
	}
	return all
}

func change(name stint.Name, id string, tat int64) stint.Change {
	return stint.Change{Key: name.Key(id), TAT: tat}
}

func testNothing(s *store) {
	for _, name := range []stint.Name{stint.Unknown, 1, 2, math.MaxUint16} {
		s.equal(int64(0), s.load(name.Key("a")))
		s.equal(0, len(s.all(name)))
	}
	s.save()
	s.save(change(1, "a", 0), change(7, "a", 0), change(stint.Unknown, "1:a", 0))
	s.equal(0, len(s.all(1)))
}

func testIDs(s *store) {
	names := []stint.Name{1, 2, 10, math.MaxUint16, stint.Unknown}
	want := make(map[stint.Key]int64)
	var changes []stint.Change
	for i, name := range names {
		for j, id := range trickyIDs {
			if name == stint.Unknown {
				id = stint.Name(1).Key(id).String() // longer than any id: 514 bytes
			}
			c := change(name, id, int64(1000*i+j+1))
			changes = append(changes, c)
			want[c.Key] = c.TAT
		}
	}
	rand.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	s.save(changes...)
	listed := func() map[stint.Key]int64 {
		got := make(map[stint.Key]int64)
		for _, name := range names {
			for _, c := range s.all(name) {
				if _, twice := got[c.Key]; twice {
					s.t.Fatalf("%q is listed twice", c.Key)
				}
				got[c.Key] = c.TAT
			}
		}
		return got
	}
	s.equal(want, listed())
	for _, name := range names {
		plain := slices.DeleteFunc(s.all(name), func(c stint.Change) bool {
			return strings.Count(c.Key.ID, "*") == len(c.Key.ID)
		})
		if !slices.IsSortedFunc(plain, func(a, b stint.Change) int { return cmp.Compare(a.Key.ID, b.Key.ID) }) {
			s.t.Fatalf("%d is not in the order of the ids' bytes", name)
		}
	}
	for key, tat := range want {
		s.equal(tat, s.load(key))
	}
	for _, key := range slices.Collect(maps.Keys(want)) { // each by itself: the others stay
		s.save(stint.Change{Key: key})
		s.equal(int64(0), s.load(key))
		delete(want, key)
		if len(want)%20 == 0 {
			s.equal(want, listed())
		}
	}
}

func testValues(s *store) {
	for _, tat := range []int64{1, -1, math.MaxInt64, math.MinInt64, 1 << 56, 255, 256} {
		s.save(change(1, "a", tat))
		s.equal(tat, s.load(stint.Name(1).Key("a")))
		s.equal([]stint.Change{change(1, "a", tat)}, s.all(1))
	}
}

func testOneStep(s *store) {
	s.save(change(1, "replaced", 1), change(1, "deleted", 2), change(1, "kept", 3))
	s.save(change(2, "added", 7), change(1, "deleted", 0), change(1, "replaced", 4), change(1, "absent", 0))
	s.equal([]stint.Change{change(1, "kept", 3), change(1, "replaced", 4)}, s.all(1))
	s.equal([]stint.Change{change(2, "added", 7)}, s.all(2))
}

func testSavedCopied(s *store) {
	changes := []stint.Change{change(1, strings.Clone("b"), 1), change(1, "a", 2)}
	s.save(changes...)
	clear(changes)
	s.equal([]stint.Change{change(1, "a", 2), change(1, "b", 1)}, s.all(1))
}

func testReadCopied(s *store) {
	var changes []stint.Change
	for i := range 500 {
		changes = append(changes, change(1, fmt.Sprintf("%04d", i), int64(i+1)))
	}
	s.save(slices.Clone(changes)...)
	read := s.all(1)
	for round := range 20 { // a file may write pages anew
		for i := range changes {
			changes[i] = change(1, fmt.Sprintf("%04d", i), int64(1_000_000+round))
		}
		s.save(slices.Clone(changes)...)
	}
	for i, c := range read {
		s.equal(change(1, fmt.Sprintf("%04d", i), int64(i+1)), c)
	}
}

func testAllWhileSaved(s *store) {
	const n = 3 * 4096 // a store may read so many at a time
	var changes []stint.Change
	for i := range n {
		changes = append(changes, change(2, fmt.Sprintf("%06d", 2*i), int64(i+1)))
	}
	s.save(slices.Clone(changes)...)
	s.equal(changes, s.all(2))

	seen := make(map[stint.Key]int64)
	last := ""
	for c, err := range s.All(2) {
		s.ok(err)
		if c.Key.ID <= last {
			s.t.Fatalf("%q comes after %q", c.Key.ID, last)
		}
		last = c.Key.ID
		seen[c.Key] = c.TAT
		if len(seen)%1000 == 0 { // changes ahead, behind, and to the entry that was read last
			var id int
			fmt.Sscanf(c.Key.ID, "%d", &id)
			s.save(change(2, fmt.Sprintf("%06d", id+1), 1), change(2, c.Key.ID, 0),
				change(2, fmt.Sprintf("%06d", max(1, id-501)), 1))
		}
	}
	for _, c := range changes {
		s.equal(c.TAT, seen[c.Key]) // no save touched it until it was read
	}
	for range s.All(2) { // a caller that has seen enough
		break
	}
	s.save(change(2, "x", 1))
}

func testGoroutines(s *store) {
	const goroutines, rounds = 8, 30
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			first, second := stint.Name(1).Key(fmt.Sprintf("%d-a", g)), stint.Name(2).Key(fmt.Sprintf("%d-b", g))
			for i := range int64(rounds) {
				if err := s.Save([]stint.Change{{Key: first, TAT: i + 1}, {Key: second, TAT: i + 1}}); err != nil {
					s.t.Error(err)
				}
				for _, key := range []stint.Key{first, second} {
					if tat, err := s.Load(key); err != nil || tat != i+1 {
						s.t.Errorf("%v: %d, %v, want %d", key, tat, err, i+1)
					}
				}
				for _, err := range s.All(1) {
					if err != nil {
						s.t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	for name := stint.Name(1); name <= 2; name++ {
		all := s.all(name)
		s.equal(goroutines, len(all))
		for _, c := range all {
			s.equal(int64(rounds), c.TAT)
		}
	}
}

// testSnapshot holds a store without a file to say so.
func testSnapshot(s *store) {
	var text strings.Builder
	n, err := s.Snapshot(&text)
	if hasFile := s.Stats() != (stint.FileStats{}); hasFile != (err == nil) {
		s.t.Fatalf("Snapshot returns %v, and Stats are %+v", err, s.Stats())
	}
	if err == nil {
		s.equal(n, int64(text.Len()))
	}
}

func testClock(s *store) {
	c := s.fileStore()
	record, err := c.LoadClock()
	s.ok(err)
	s.equal(0, len(record))
	for _, text := range []string{"first", "the second", strings.Repeat("\x00", 99)} {
		saved := []byte(text)
		s.ok(c.SaveClock(saved))
		clear(saved)
		record, err := c.LoadClock()
		s.ok(err)
		s.equal(text, string(record))
	}
	for _, name := range []stint.Name{stint.Unknown, 1, 2} {
		s.equal(0, len(s.all(name))) // it is no bucket
	}
}

func testRoom(s *store) {
	if n := s.fileStore().Room(); n < 1 {
		s.t.Fatalf("there is room for %d buckets: want 1 at least", n)
	}
}

func testInPlace(s *store) { s.ok(s.fileStore().InPlace()) }

func (s *store) fileStore() stint.FileStore {
	f, ok := s.Store.(stint.FileStore)
	if !ok {
		s.t.Skip("it is no FileStore")
	}
	return f
}

// If the Store has labels, a number keeps its label, and a label its number. After
// ErrNameMismatch no name of the call is declared.
func testNames(s *store) {
	if s.Declare(stint.Names{1: {Label: "another"}}) == nil {
		s.t.Skip("it has no labels")
	}
	for _, wrong := range []stint.Names{
		{1: {Label: "another"}, 3: {Label: "three"}},
		{3: {Label: "one"}, 4: {Label: "three"}},
	} {
		if err := s.Declare(wrong); !errors.Is(err, stint.ErrNameMismatch) {
			s.t.Fatalf("Declare %v: want ErrNameMismatch, got %v", wrong, err)
		}
	}
	s.ok(s.Declare(stint.Names{1: {Label: "one"}, 5: {Label: "three"}}))
}
