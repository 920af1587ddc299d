package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/testlength"
)

// memory has the TATs that a store may return for each key: the TAT of the last
// save that succeeded, and those of saves that failed since. The store may
// forget a TAT that is past.
type memory struct {
	keys []Key
	tats map[Key][]int64
	now  int64
}

func newMemory() *memory {
	m := &memory{tats: make(map[Key][]int64)}
	for i := range commitSave/2 + 1 {
		key := Key{[]uint16{1, 2, 300}[i/4%3], fmt.Sprint(i)}
		if i < 4 {
			key.ID = []string{"", "*", "**", "*!"}[i] // their keys are in another order
		}
		for _, key := range []Key{key, {format.Holds, entry(key, 0).String()}} {
			m.keys, m.tats[key] = append(m.keys, key), []int64{0}
		}
	}
	return m
}

// saved notes the end of a save.
func (m *memory) saved(entries []format.Entry, err error) {
	for _, e := range entries {
		if err == nil {
			m.tats[keyOf(e)] = nil
		}
		m.tats[keyOf(e)] = append(m.tats[keyOf(e)], e.TAT)
	}
}

// allows requires that m permits all the entries that a store lists.
func (m *memory) allows(t *testing.T, all map[Key]int64, context string) {
	t.Helper()
	listed := 0
	for _, key := range m.keys {
		tat, ok := all[key]
		if ok {
			listed++
		}
		may := m.tats[key]
		past := tat == 0 && slices.Min(may) <= m.now
		require.True(t, past || slices.Contains(may, tat), "%s: %v is %d, of %d", context, key, tat, may)
	}
	require.Len(t, all, listed, context)
}

// faults are the ways in which the disk fails.
var faults = []func(s *Store) (restore func()){
	func(s *Store) func() { // a commit whose meta page is not written
		return failCommits(s.inUse.file, func([]byte, int64) (int, error) { return 0, errFault })
	},
	func(s *Store) func() { return failCommits(s.inUse.file, unsynced(s.inUse.file)) },
	func(s *Store) func() { s.fs.SyncFile = func(*os.File) error { return errFault }; return func() {} },
	func(s *Store) func() { s.fs.SyncDir = func(string) error { return errFault }; return func() {} },
	failWrites(func(b []byte) []byte { return nil }),
	failWrites(func(b []byte) []byte { return b[:len(b)/2] }),
	failWrites(bytes.Clone),
}

// failWrites makes each write to the file write only part(b), and fail.
func failWrites(part func(b []byte) []byte) func(s *Store) func() {
	return func(s *Store) func() {
		s.fs.WriteAt = func(file *os.File, b []byte, at int64) (int, error) {
			n, err := file.WriteAt(part(b), at)
			return n, errors.Join(errFault, err)
		}
		return func() {}
	}
}

// A store returns what was last saved, whether it is in the log, the journal or
// the tree. It does so during maintenance, and after a crash, which leaves a
// sound file. If the disk fails, only the calls of that time fail. Their
// entries never replace those of a later save. No label has two numbers.
func TestStoreHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(testlength.Of(20, 1)) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		m := newMemory()
		s := openStore(t, storePath(t))
		labels := make(map[string]uint16)
		reopen := func(path string) {
			require.NoError(t, s.Close())
			s = openStore(t, path)
			s.fs.RenamesOpen = seed%2 == 0
		}
		for step := range testlength.Of(150, 60) {
			context := fmt.Sprintf("seed %d, step %d", seed, step)
			sound, restore, failing := *s.fs, func() {}, rnd.IntN(4) == 0
			if failing {
				restore = faults[rnd.IntN(len(faults))](s)
			}
			var err error
			switch n := rnd.IntN(14); {
			case n == 0:
				err = s.checkpoint()
			case n == 1:
				m.now += rnd.Int64N(100_000)
				err = s.sweep(m.now)
			case n == 2:
				err = s.compactBusy()
			case n == 3:
				label := fmt.Sprint("label ", rnd.IntN(5))
				var number uint16
				if number, err = s.Number(label); err == nil {
					require.Contains(t, []uint16{0, number}, labels[label], context)
					labels[label] = number
				}
			case n == 4: // as when a checkpoint was interrupted
				s.saves.mu.Lock()
				s.journal.begin(s.saves.seq)
				s.saves.mu.Unlock()
			case n < 7 && !failing:
				path := s.path
				if n == 6 {
					path = crash(t, s)
				}
				reopen(path)
				all := allOf(t, s)
				m.allows(t, all, context)
				for _, key := range m.keys { // the state from here on is certain
					m.tats[key] = []int64{all[key]}
				}
				sound = *s.fs
			default:
				var changes []format.Entry
				some := rnd.Perm(60)[:1+rnd.IntN(30)] // some of the same 60 keys
				if n == 7 {
					some = rnd.Perm(len(m.keys)) // too many for the log
				}
				for _, i := range some {
					changes = append(changes, entry(m.keys[i], max(0, m.now+rnd.Int64N(1_000_000)-100_000)))
				}
				if s.together(); n%2 == 0 {
					s.alone()
				}
				err = s.Save(slices.Clone(changes))
				m.saved(changes, err)
			}
			restore()
			*s.fs = sound
			s.journal.mu.Lock()
			s.journal.idle, s.journal.backoff = 0, 0 // so that the background does nothing
			s.journal.mu.Unlock()
			require.True(t, failing || err == nil, "%s: %v", context, err)
			for _, err := range s.All(1) {
				require.NoError(t, err, context)
				break // a caller may stop
			}
			if step%10 == 9 {
				all := allOf(t, s)
				m.allows(t, all, context)
				loaded := make(map[Key]int64)
				for _, key := range m.keys {
					if tat := load(t, s, key); tat != 0 {
						loaded[key] = tat
					}
				}
				m.allows(t, loaded, context)
				got, err := found(t, crash(t, s))
				require.NoError(t, err, context)
				m.allows(t, got, context)
			}
		}
		require.NoError(t, s.Close())
	}
}
