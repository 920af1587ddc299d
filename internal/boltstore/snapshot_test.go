package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/bboltpage"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/testlength"
)

// writerOf is an io.Writer.
type writerOf func(b []byte) (int, error)

func (w writerOf) Write(b []byte) (int, error) { return w(b) }

// A copy shows one moment, even if the file is written to, applied and
// compacted at the same time. The writer gives two buckets the same TAT in each
// save.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	saved := make(chan struct{})
	var stop atomic.Bool
	var busy sync.WaitGroup
	busy.Go(func() {
		first := sync.OnceFunc(func() { close(saved) })
		defer first()
		for i := 1; !stop.Load(); i++ {
			changes := append(numbered(1, i%50*200, 200), entry(Key{1, "a"}, int64(i)), entry(Key{1, "z"}, int64(i)))
			err := s.Save(changes)
			if i%20 == 0 && err == nil {
				err = errors.Join(s.checkpoint(), s.Compact())
			}
			if !assert.NoError(t, err) {
				return
			}
			first()
		}
	})
	<-saved
	last := int64(0)
	for i := range testlength.Of(30, 2) {
		var copied bytes.Buffer
		meanwhile := sync.OnceFunc(func() { // saves do not wait for the reader of the copy
			require.NoError(t, s.Save([]format.Entry{entry(Key{1, "meanwhile"}, int64(i)+1)}))
			require.NoError(t, s.Compact())
		})
		n, err := s.Snapshot(writerOf(func(b []byte) (int, error) { meanwhile(); return copied.Write(b) }))
		require.NoError(t, err)
		require.EqualValues(t, copied.Len(), n)
		path := filecopy.New(t, copied.Bytes())
		got, err := found(t, path)
		require.NoError(t, err)
		require.Equal(t, got[Key{1, "a"}], got[Key{1, "z"}])
		require.GreaterOrEqual(t, got[Key{1, "a"}], last)
		require.EqualValues(t, i, got[Key{1, "meanwhile"}])
		last = got[Key{1, "a"}]

		c := openStore(t, path) // it can be written to, and copied
		own := entry(Key{1, "own"}, 1)
		require.NoError(t, c.Save([]format.Entry{own}))
		require.NoError(t, c.Close())
		r, err := Open(path, nil, Options{ReadOnly: true})
		require.NoError(t, err)
		copied.Reset()
		_, err = r.Snapshot(&copied)
		require.NoError(t, errors.Join(err, r.Close()))
		again, err := found(t, filecopy.New(t, copied.Bytes()))
		require.NoError(t, err)
		require.Equal(t, with(got, own), again)
	}
	stop.Store(true)
	busy.Wait()
	require.Positive(t, last)
	_, err := s.Snapshot(writerOf(func([]byte) (int, error) { return 0, errFault }))
	require.Equal(t, errFault, err)
	require.NoError(t, s.Close())
	_, err = s.Snapshot(io.Discard)
	require.ErrorIs(t, err, ErrClosed)
	require.Empty(t, temporaries(t, s))
}

// A copy of a truncated file is an error, not a short copy.
func TestSnapshotTruncated(t *testing.T) {
	t.Parallel()
	path := makeFile(t, storeNames, numbered(1, 0, 20_000)...)
	r, err := Open(path, nil, Options{ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 20*bboltpage.Size))
	_, err = r.Snapshot(io.Discard)
	require.ErrorIs(t, err, format.ErrCorrupt)
	require.ErrorContains(t, err, "the file is shorter than it says: 81920 bytes, want ")
	require.NoError(t, r.Close())

	s, _ := openLogged(t)
	for _, pages := range []int64{s.inUse.file.LogState().Begin/bboltpage.Size + 100, 2} { // inside the log, and before it
		require.NoError(t, os.Truncate(s.path, pages*bboltpage.Size))
		_, err = s.Snapshot(io.Discard)
		require.ErrorIs(t, err, format.ErrCorrupt)
		require.ErrorContains(t, err, "the file is shorter than it says")
	}
	require.Empty(t, temporaries(t, s))
}

// Saves go on during the copy until the journal is full, and again after it.
// The copy has the records of the log, but its own log is empty.
func TestSaveDuringSnapshot(t *testing.T) {
	s, want := openLogged(t)
	want = with(want, numbered(1, 0, 100)...)
	fill(t, s, 100)
	logged := entry(Key{1, "logged"}, 1<<60)
	s.put(t, logged)
	want = with(want, logged)
	s.setMost(10)
	log := s.inUse.file.LogState().Begin
	r, w, err := os.Pipe() // a pipe has less room than the log
	require.NoError(t, err)
	defer r.Close()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(s.snapshotTo(w), w.Close()) }()
	first := make([]byte, 1)
	_, err = r.Read(first)
	require.NoError(t, err)

	s.together()
	require.NoError(t, s.Save(numbered(2, 1<<30, 1)))
	saved := make(chan error, 1)
	go func() { saved <- s.Save(numbered(2, 1<<29, 1)) }()
	awaitWaiter("pace", saved)
	require.Empty(t, saved, "the save did not wait")
	require.Empty(t, ended)
	rest, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, <-ended)
	require.NoError(t, <-saved)
	content := append(first, rest...)
	require.True(t, bytes.Equal(make([]byte, format.LogSize), content[log:][:format.LogSize]))
	got, err := found(t, filecopy.New(t, content))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// A snapshot that waits for a save does not make the save wait for the
// snapshot.
func TestSnapshotFullJournal(t *testing.T) {
	s := openStore(t, storePath(t))
	s.together()
	require.NoError(t, s.Save(numbered(2, 0, 3)))
	s.setMost(1)
	require.True(t, s.journal.is((*journalState).outpacedLocked))
	s.saves.mu.Lock() // as a save does
	taken, paced := make(chan error, 1), make(chan error, 1)
	go func() { _, err := s.Snapshot(io.Discard); taken <- err }()
	awaitWaiter("snapshotTo", taken)
	require.Empty(t, taken)
	go func() { s.journal.pace(); paced <- nil }()
	awaitWaiter("pace", paced)
	goesOn := len(paced) == 1
	s.saves.mu.Unlock()
	require.NoError(t, errors.Join(<-taken, <-paced))
	require.True(t, goesOn, "they wait for each other")
}

// A copy that bbolt made has its meta pages at other places than a commit would
// put them. A snapshot of that copy, and a snapshot of the snapshot, have them
// in order.
func TestSnapshotCopy(t *testing.T) {
	t.Parallel()
	path := makeFile(t, labels{1: "One"}, entry(Key{1, "a"}, 1))
	for range 2 { // after each of two commits
		copied := filepath.Join(t.TempDir(), "copy.db")
		filecopy.Edit(t, path, func(tx *bolt.Tx) error { return tx.CopyFile(copied, 0o600) })
		for range 2 {
			s, err := Open(copied, nil, Options{ReadOnly: true})
			require.NoError(t, err)
			var b bytes.Buffer
			_, err = s.Snapshot(&b)
			require.NoError(t, errors.Join(err, s.Close()))
			for i := range 2 { // the next commit writes over the older one
				require.EqualValues(t, i, binary.NativeEndian.Uint64(b.Bytes()[i*bboltpage.Size+64:])%2)
			}
			copied = filecopy.New(t, b.Bytes())
			_, err = verify(copied)
			require.NoError(t, err)
		}
	}
}

// A file of an older version has no sums. A compaction adds them.
func TestVerifyWithoutSums(t *testing.T) {
	t.Parallel()
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		t.Skip("the file was written by a machine of the other byte order")
	}
	path := filecopy.New(t, filecopy.Read(t, "../../testdata/format1.db"))
	v, err := verify(path)
	require.NoError(t, err)
	require.Equal(t, []string{"1", "6", "holds", "journal", "names"}, v.Unsummed)
	s := openNamed(t, path, nil)
	require.NoError(t, s.Save([]format.Entry{entry(Key{6, "new"}, 1)}))
	require.NoError(t, s.checkpoint())
	v, err = verify(crash(t, s))
	require.NoError(t, err)
	require.Len(t, v.Unsummed, 5, "a sum of a part would be wrong")
	s.put(t, entry(Key{6, "newer"}, 1))
	require.NoError(t, s.Compact())
	v, err = verify(crash(t, s))
	require.NoError(t, err)
	require.Empty(t, v.Unsummed)
	require.NoError(t, s.Close())
	filecopy.Edit(t, path, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("6")).Put([]byte("new"), format.BigEndian(2))
	})
	_, err = verify(path)
	require.ErrorIs(t, err, format.ErrCorrupt)
}
