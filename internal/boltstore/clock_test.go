package boltstore

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/fsck"
)

// TestClockRecord: the record of the clock is in the file, whatever was done to
// the file since.
func TestClockRecord(t *testing.T) {
	t.Parallel()
	record := bytes.Repeat([]byte("clock"), 16)
	stored := func(path string) []byte {
		t.Helper()
		s, err := Open(path, nil, Options{ReadOnly: true})
		require.NoError(t, err)
		defer s.Close()
		found, err := s.LoadClock()
		require.NoError(t, err)
		return found
	}
	s := openStore(t, storePath(t))
	require.Empty(t, stored(crash(t, s)))
	s.together()
	require.NoError(t, s.Save([]format.Entry{entry(Key{1, "a"}, 1<<60), {TAT: 7}}))
	require.NoError(t, s.SaveClock(record))
	require.Equal(t, record, stored(crash(t, s)))
	require.NoError(t, s.checkpoint())
	require.NoError(t, s.Compact())
	require.Equal(t, record, stored(crash(t, s)))
	var copied bytes.Buffer
	_, err := s.Snapshot(&copied)
	require.NoError(t, err)
	require.Equal(t, record, stored(writeFile(t, copied.Bytes())))
	record = append(record, "more"...)
	require.NoError(t, s.SaveClock(record))
	require.Equal(t, record, stored(crash(t, s)))
	path := crash(t, s)
	_, err = fsck.Verify(path, longLock, func(int) {})
	require.NoError(t, err)
	repaired := storePath(t)
	salvaged, err := fsck.Salvage(path, repaired, longLock, func(int) error { return nil })
	require.NoError(t, err)
	require.Empty(t, salvaged.Lost)
	require.Equal(t, record, stored(repaired))

	require.NoError(t, s.update(func(tx *bolt.Tx) error {
		v := format.ClockValue(record)
		v[9] ^= 4
		return tx.Bucket(format.MetaBucket).Put(format.ClockKey, v)
	}))
	_, err = s.LoadClock()
	require.ErrorIs(t, err, format.ErrCorrupt)
	require.NoError(t, s.Close())
	_, err = fsck.Verify(s.path, longLock, func(int) {})
	require.ErrorContains(t, err, "its record of the clock is damaged")
	repaired = storePath(t)
	_, err = fsck.Salvage(s.path, repaired, longLock, func(int) error { return nil })
	require.NoError(t, err)
	require.Empty(t, stored(repaired))
}
