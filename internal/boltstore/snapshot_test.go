package boltstore

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

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/fsck"
)

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

// A copy is of one moment, also when the file is written to, applied and
// compacted meanwhile. The writer gives two buckets the same TAT in each save.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "buckets.db"))
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		for i := int64(1); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			changes := []format.Entry{entry(Key{1, "a"}, i), entry(Key{1, "z"}, i)}
			for j := range 200 {
				changes = append(changes, entry(Key{1, fmt.Sprint("m", i%50, j)}, i))
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
	for i := range steps(30, 6) {
		w := duringWrite{do: func() { // nobody waits for whom the copy is for
			require.NoError(t, s.Save([]format.Entry{entry(Key{1, "meanwhile"}, int64(i)+1)}))
			require.NoError(t, s.Compact())
		}}
		n, err := s.Snapshot(&w)
		require.NoError(t, err)
		require.EqualValues(t, w.got.Len(), n)
		path := filepath.Join(dir, "copy.db")
		require.NoError(t, os.WriteFile(path, w.got.Bytes(), 0o600))
		_, err = verify(path)
		require.NoError(t, err)
		c, err := Open(path, nil, Options{LockTimeout: longLock}) // to be written, too
		require.NoError(t, err)
		tat := load(t, c, Key{1, "a"})
		require.Equal(t, tat, load(t, c, Key{1, "z"}))
		require.GreaterOrEqual(t, tat, last)
		last = tat
		require.EqualValues(t, i, load(t, c, Key{1, "meanwhile"}))
		require.NoError(t, c.Save([]format.Entry{entry(Key{1, "own"}, 1)}))
		require.NoError(t, c.Close())

		r, err := Open(path, nil, Options{ReadOnly: true})
		require.NoError(t, err)
		var again bytes.Buffer
		_, err = r.Snapshot(&again)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.NoError(t, os.WriteFile(path, again.Bytes(), 0o600))
		_, err = verify(path)
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

type writerOf func(b []byte) (int, error)

func (w writerOf) Write(b []byte) (int, error) { return w(b) }

// TestSaveWaitsForASnapshot: saves go on while the copy is made, until the
// journal is full, and once more when it is made.
func TestSaveWaitsForASnapshot(t *testing.T) {
	t.Parallel()
	s := openLogged(t)
	want := fill(t, s, 100)
	want[Key{1, "the log is made"}] = 1
	s.setMost(10)
	r, w, err := os.Pipe() // which has room for less than the log
	require.NoError(t, err)
	defer r.Close()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(s.snapshotTo(w), w.Close()) }()
	first := make([]byte, 1)
	_, err = r.Read(first)
	require.NoError(t, err)

	s.together()
	require.NoError(t, s.Save([]format.Entry{entry(Key{2, fmt.Sprintf("%020d", 1)}, 1)}))
	saved := make(chan error, 1)
	go func() { saved <- s.Save([]format.Entry{entry(Key{2, fmt.Sprintf("%020d", 2)}, 1)}) }()
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

// TestSnapshotOfAFullJournal: a snapshot that waits for a save does not have
// that wait for it.
func TestSnapshotOfAFullJournal(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	s.together()
	require.NoError(t, s.Save([]format.Entry{entry(Key{2, "a"}, 1), entry(Key{2, "b"}, 1), entry(Key{2, "c"}, 1)}))
	s.journal.mu.Lock()
	s.journal.most = 1
	require.True(t, s.journal.outpacedLocked())
	s.journal.mu.Unlock()

	s.saves.mu.Lock() // as a save has it
	taken := make(chan error, 1)
	go func() { _, err := s.Snapshot(io.Discard); taken <- err }()
	awaitWaiter("snapshotTo", taken)
	require.Empty(t, taken)
	paced := make(chan error, 1)
	go func() { s.journal.pace(); paced <- nil }()
	awaitWaiter("pace", paced)
	goesOn := len(paced) == 1
	s.saves.mu.Unlock()
	require.NoError(t, <-taken)
	require.NoError(t, <-paced)
	require.True(t, goesOn, "they wait for each other")
}

// TestSnapshotOfACopy: of a copy that bbolt made, whose meta pages are not
// where a commit would have put them, and of a copy of that, after each of two
// commits.
func TestSnapshotOfACopy(t *testing.T) {
	t.Parallel()
	path := makeFile(t, labels{1: "One"}, entry(Key{1, "a"}, 1))
	for range 2 {
		edit(t, path, func(tx *bolt.Tx) error { return nil })
		copied := filepath.Join(t.TempDir(), "copy.db")
		db, err := bolt.Open(path, 0o600, nil)
		require.NoError(t, err)
		require.NoError(t, db.View(func(tx *bolt.Tx) error { return tx.CopyFile(copied, 0o600) }))
		require.NoError(t, db.Close())
		for range 2 {
			s, err := Open(copied, nil, Options{ReadOnly: true})
			require.NoError(t, err)
			var b bytes.Buffer
			_, err = s.Snapshot(&b)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			require.NoError(t, os.WriteFile(copied, b.Bytes(), 0o600))
			for i := range 2 { // the next commit writes over the older one
				require.EqualValues(t, i, binary.NativeEndian.Uint64(b.Bytes()[i*bboltpage.Size+64:])%2)
			}
			_, err = verify(copied)
			require.NoError(t, err)
		}
	}
}

// TestSumsAreKept looks at the sums after each way in which an entry is
// written, moved or deleted.
func TestSumsAreKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "buckets.db")
	s := openStore(t, path)
	sound := func(what string, buckets, journaled int) {
		t.Helper()
		v, err := verify(crash(t, s))
		require.NoError(t, err, what)
		require.Equal(t, fsck.Verified{Buckets: int64(buckets), Journaled: int64(journaled)}, v, what)
	}
	sound("a new file", 0, 0)
	require.NoError(t, s.Save([]format.Entry{entry(Key{1, ""}, 1), entry(Key{1, "*"}, 2), entry(Key{6, "a"}, 3), entry(Key{format.Holds, "6:a"}, 4)}))
	sound("saved to its place", 4, 0)
	s.put(t, entry(Key{1, "*"}, 5), entry(Key{6, "a"}, 0), entry(Key{6, "b"}, 6), entry(Key{format.Holds, "6:a"}, 7))
	sound("in the journal", 4, 4)
	require.NoError(t, s.compactBusy())
	sound("compacted, with a journal", 4, 4)
	require.NoError(t, s.Compact())
	sound("taken home", 4, 0)
	var many []format.Entry
	for i := range 40_000 {
		many = append(many, entry(Key{6, fmt.Sprint("id", i)}, 1<<60))
	}
	require.NoError(t, s.append(many))
	require.NoError(t, s.checkpoint())
	sound("many", 40_004, 0)
	_, err := s.Number("Other")
	require.NoError(t, err)
	sound("one more label", 40_004, 0)
	for range 30 {
		require.NoError(t, s.sweep(1<<59)) // not the holds: their Name is looked at, too
	}
	sound("swept", 40_000, 0)
	require.NoError(t, s.Compact())
	sound("compacted", 40_000, 0)
	for i := range many {
		many[i].TAT = 0
	}
	require.NoError(t, s.append(many))
	require.NoError(t, s.checkpoint())
	sound("nothing left", 0, 0)
	require.NoError(t, s.Close())
	s = openStore(t, path)
	s.put(t, entry(Key{1, "last"}, 1))
	abandon(t, s)
	s = openStore(t, path)
	sound("after a crash", 0, 1)
}

// TestVerifyOfAFileWithoutSums: what an older version wrote has none, and gets
// them when it is compacted.
func TestVerifyOfAFileWithoutSums(t *testing.T) {
	t.Parallel()
	path := copyOf(t, "../../testdata/format1.db")
	v, err := verify(path)
	require.NoError(t, err)
	require.Equal(t, []string{"1", "6", "holds", "journal", "names"}, v.Unsummed)
	s := openNamed(t, path, nil)
	require.NoError(t, s.Save([]format.Entry{entry(Key{6, "new"}, 1)}))
	require.NoError(t, s.checkpoint())
	v, err = verify(crash(t, s))
	require.NoError(t, err)
	require.Len(t, v.Unsummed, 5, "a sum of some of it would be wrong")
	s.put(t, entry(Key{6, "newer"}, 1))
	require.NoError(t, s.Compact())
	v, err = verify(crash(t, s))
	require.NoError(t, err)
	require.Empty(t, v.Unsummed)
	require.NoError(t, s.Close())
	edit(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("6")).Put([]byte("new"), format.BigEndian(2)) })
	_, err = verify(path)
	require.ErrorIs(t, err, format.ErrCorrupt)
}
