package stint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

// duringWrite is a writer that does something before the first byte is taken.
type duringWrite struct {
	got bytes.Buffer
	do  func()
}

func (w *duringWrite) Write(b []byte) (int, error) {
	if do := w.do; do != nil {
		w.do = nil
		do()
	}
	return w.got.Write(b)
}

// TestSnapshot takes copies while the file is written to, taken home and compacted, and looks into each: one writer
// gives two buckets the same TAT in each save, so that a copy that is of two moments shows.
func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	s := openBolt(t, filepath.Join(dir, "buckets.db"), Names{1: {Label: "One"}})
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		for i := int64(1); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			changes := []Change{{Key{1, "a"}, i}, {Key{1, "z"}, i}}
			for j := range 200 {
				changes = append(changes, Change{Key{1, fmt.Sprint("m", i%50, j)}, i})
			}
			err := s.Save(changes)
			if i%20 == 0 && err == nil {
				err = errors.Join(s.checkpoint(), s.Compact())
			}
			if !assert.NoError(t, err) {
				return
			}
		}
	})
	last := int64(0)
	for i := range 30 {
		w := duringWrite{do: func() { // nobody waits for whom the copy is for
			require.NoError(t, s.Save([]Change{{Key{1, "meanwhile"}, int64(i) + 1}}))
			require.NoError(t, s.Compact())
		}}
		n, err := s.Snapshot(&w)
		require.NoError(t, err)
		require.EqualValues(t, w.got.Len(), n)
		path := filepath.Join(dir, "copy.db")
		require.NoError(t, os.WriteFile(path, w.got.Bytes(), 0o600))
		_, err = verify(t, path)
		require.NoError(t, err)
		c, err := OpenBolt(path, nil, nil) // to be written, too
		require.NoError(t, err)
		tat := load(t, c, Key{1, "a"})
		require.Equal(t, tat, load(t, c, Key{1, "z"}))
		require.GreaterOrEqual(t, tat, last)
		last = tat
		require.EqualValues(t, i, load(t, c, Key{1, "meanwhile"}))
		save(t, c, Change{Key{1, "own"}, 1})
		require.NoError(t, c.Close())

		r, err := OpenBolt(path, nil, &BoltOptions{ReadOnly: true})
		require.NoError(t, err)
		var again bytes.Buffer
		_, err = r.Snapshot(&again)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.NoError(t, os.WriteFile(path, again.Bytes(), 0o600))
		_, err = verify(t, path)
		require.NoError(t, err)
	}
	close(stop)
	busy.Wait()
	require.Positive(t, last)
	require.ElementsMatch(t, []string{"buckets.db", "copy.db"}, listDir(t, dir))

	_, err := s.Snapshot(writerOf(func([]byte) (int, error) { return 0, errors.New("gone") }))
	require.EqualError(t, err, "gone")
	require.ElementsMatch(t, []string{"buckets.db", "copy.db"}, listDir(t, dir))
	require.NoError(t, s.Close())
	_, err = s.Snapshot(new(bytes.Buffer))
	require.ErrorIs(t, err, ErrClosed)
	require.ElementsMatch(t, []string{"buckets.db", "copy.db"}, listDir(t, dir))
}

// TestSaveWaitsForASnapshot: saves go on while the copy is made, until the journal is full, and once more when it is made.
func TestSaveWaitsForASnapshot(t *testing.T) {
	s := openLogged(t)
	want := fill(t, s, 100)
	want[Key{1, "the log is made"}] = 1
	s.indexMu.Lock()
	s.indexMost = 10
	s.indexMu.Unlock()
	r, w, err := os.Pipe() // which has room for less than the log
	require.NoError(t, err)
	defer r.Close()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(s.snapshotTo(w), w.Close()) }()
	first := make([]byte, 1)
	_, err = r.Read(first)
	require.NoError(t, err)

	s.together()
	require.NoError(t, s.Save([]Change{{Key{2, fmt.Sprintf("%020d", 1)}, 1}}))
	saved := make(chan error, 1)
	go func() { saved <- s.Save([]Change{{Key{2, fmt.Sprintf("%020d", 2)}, 1}}) }()
	awaitWaiter("pace", saved)
	require.Empty(t, saved, "it did not wait")
	require.Empty(t, ended)
	rest, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, <-ended)
	require.NoError(t, <-saved)
	got, err := found(t, writeFile(t, append(first, rest...)))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestSnapshotOfAFullJournal: a snapshot that waits for a save does not have that wait for it.
func TestSnapshotOfAFullJournal(t *testing.T) {
	s := openStore(t, storePath(t))
	s.together()
	require.NoError(t, s.Save([]Change{{Key{2, "a"}, 1}, {Key{2, "b"}, 1}, {Key{2, "c"}, 1}}))
	s.indexMu.Lock()
	s.indexMost = 1
	require.True(t, s.outpacedLocked())
	s.indexMu.Unlock()

	s.saveMu.Lock() // as a save has it
	taken := make(chan error, 1)
	go func() { _, err := s.Snapshot(io.Discard); taken <- err }()
	awaitWaiter("snapshotTo", taken)
	require.Empty(t, taken)
	paced := make(chan error, 1)
	go func() { s.pace(); paced <- nil }()
	awaitWaiter("pace", paced)
	goesOn := len(paced) == 1
	s.saveMu.Unlock()
	require.NoError(t, <-taken)
	require.NoError(t, <-paced)
	require.True(t, goesOn, "they wait for each other")
}

type writerOf func(b []byte) (int, error)

func (w writerOf) Write(b []byte) (int, error) { return w(b) }

// TestSnapshotOfACopy: of a copy that bbolt made, whose meta pages are not where a commit would have put them, and of a copy of
// that, after each of two commits.
func TestSnapshotOfACopy(t *testing.T) {
	path := makeBolt(t, Names{1: {Label: "One"}}, Change{Key{1, "a"}, 1})
	for range 2 {
		edit(t, path, func(tx *bolt.Tx) error { return nil })
		copied := filepath.Join(t.TempDir(), "copy.db")
		db, err := bolt.Open(path, 0o600, nil)
		require.NoError(t, err)
		require.NoError(t, db.View(func(tx *bolt.Tx) error { return tx.CopyFile(copied, 0o600) }))
		require.NoError(t, db.Close())
		for range 2 {
			s, err := OpenBolt(copied, nil, &BoltOptions{ReadOnly: true})
			require.NoError(t, err)
			var b bytes.Buffer
			_, err = s.Snapshot(&b)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			require.NoError(t, os.WriteFile(copied, b.Bytes(), 0o600))
			for i := range 2 { // the next commit writes over the older one
				require.EqualValues(t, i, binary.NativeEndian.Uint64(b.Bytes()[i*pageSize+64:])%2)
			}
			_, err = verify(t, copied)
			require.NoError(t, err)
		}
	}
}

// TestLimiterSnapshot: what was decided is in it, though no flush has come.
func TestLimiterSnapshot(t *testing.T) {
	names := Names{1: {Label: "One"}}
	limits := limitsOf(t, names, map[Name]Limit{1: PerHour(5)})
	l, err := Open(filepath.Join(t.TempDir(), "buckets.db"), limits, nil)
	require.NoError(t, err)
	defer l.Close()
	for range 5 {
		require.True(t, l.Allow(Key{1, "a"}))
	}
	var copied bytes.Buffer
	_, err = l.Snapshot(&copied)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, os.WriteFile(path, copied.Bytes(), 0o600))
	c, err := Open(path, limits, nil)
	require.NoError(t, err)
	require.False(t, c.Allow(Key{1, "a"}))
	require.NoError(t, c.Close())

	m, err := New(NewMemStore(), limits, nil)
	require.NoError(t, err)
	defer m.Close()
	_, err = m.Snapshot(&copied)
	require.ErrorContains(t, err, "has no file to copy")
	require.NoError(t, l.Close())
	_, err = l.Snapshot(&copied)
	require.ErrorIs(t, err, ErrClosed)
}
