package boltstore

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/fsck"
)

// seen returns the time of the last save in the file at path.
func seen(t *testing.T, path string) int64 {
	t.Helper()
	s, err := Open(path, nil, Options{ReadOnly: true})
	require.NoError(t, err)
	defer s.Close()
	at, err := s.Load(format.Holds, "")
	require.NoError(t, err)
	for e, err := range s.All(format.Holds) {
		require.NoError(t, err)
		require.NotEmpty(t, e.ID, "the time is no hold")
	}
	return at
}

// TestSeen: the time of the last save is in the file, wherever the save went,
// and whatever was done to the file since.
func TestSeen(t *testing.T) {
	t.Parallel()
	bucket := entry(Key{1, "a"}, 1<<60)
	for name, save := range map[string]func(s *Store){
		"tree": func(s *Store) { s.alone() },
		"log":  func(s *Store) { s.together() },
		"journal": func(s *Store) {
			s.together()
			require.NoError(t, s.Save(append(numbered(1, 0, 3000), format.Entry{TAT: 5})))
			s.together()
		},
		"checkpoint": func(s *Store) { s.put(t, format.Entry{TAT: 6}); require.NoError(t, s.checkpoint()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, storePath(t))
			s.now.Store(1 << 50) // a checkpoint deletes buckets that are full
			at := int64(7)
			save(s)
			require.NoError(t, s.Save([]format.Entry{bucket, {TAT: at}}))
			require.Equal(t, at, seen(t, crash(t, s)))
			require.NoError(t, s.checkpoint())
			require.Equal(t, at, seen(t, crash(t, s)))
			require.NoError(t, s.Compact())
			require.Equal(t, at, seen(t, crash(t, s)))
			var copied bytes.Buffer
			_, err := s.Snapshot(&copied)
			require.NoError(t, err)
			require.Equal(t, at, seen(t, writeFile(t, copied.Bytes())))
			s.together()
			require.NoError(t, s.Save([]format.Entry{{TAT: at + 1}}))
			require.NoError(t, s.compactBusy())
			require.Equal(t, at+1, seen(t, crash(t, s)))
			path := crash(t, s)
			_, err = fsck.Verify(path, longLock, func(int) {})
			require.NoError(t, err)
			repaired := storePath(t)
			salvaged, err := fsck.Salvage(path, repaired, longLock, func(int) error { return nil })
			require.NoError(t, err)
			require.Empty(t, salvaged.Lost)
			require.Equal(t, at+1, seen(t, repaired))
			require.NoError(t, s.Close())
			require.Equal(t, at+1, seen(t, s.path))
		})
	}
}

// TestSeenDamaged: a damaged time is ErrCorrupt, and a repair leaves it out.
func TestSeenDamaged(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	require.NoError(t, s.update(func(tx *bolt.Tx) error {
		v := format.SeenValue(1 << 60)
		v[5] ^= 4
		return tx.Bucket(format.MetaBucket).Put(format.SeenKey, v)
	}))
	_, err := s.Load(format.Holds, "")
	require.ErrorIs(t, err, format.ErrCorrupt)
	require.NoError(t, s.Close())
	_, err = fsck.Verify(s.path, longLock, func(int) {})
	require.ErrorIs(t, err, format.ErrCorrupt)
	require.ErrorContains(t, err, "the time of its last save is damaged")
	repaired := storePath(t)
	_, err = fsck.Salvage(s.path, repaired, longLock, func(int) error { return nil })
	require.NoError(t, err)
	require.Zero(t, seen(t, repaired))
}
