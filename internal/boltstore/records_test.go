package boltstore

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
)

// record is what a file has once, beside its entries: here, a number.
type record struct {
	save       func(s *Store, n int64) error
	load       func(s *Store) (n int64, err error)
	key, value []byte
	damaged    string
}

// stored returns the number in the record of the file at path.
func (r record) stored(t *testing.T, path string) int64 {
	t.Helper()
	s, err := Open(path, nil, Options{ReadOnly: true})
	require.NoError(t, err)
	defer s.Close()
	n, err := r.load(s)
	require.NoError(t, err)
	require.NotContains(t, allOf(t, s), Key{format.Holds, ""}, "it is no hold")
	return n
}

// The record of the clock, and the time of the last save, are in the file,
// wherever the save went, and whatever was done to the file since. A damaged
// record is ErrCorrupt, and a repair leaves it out.
func TestRecords(t *testing.T) {
	t.Parallel()
	seenAfter := func(prepare func(s *Store)) record {
		return record{
			func(s *Store, n int64) error {
				prepare(s)
				return s.Save([]format.Entry{entry(Key{1, "a"}, 1<<60), {TAT: n}})
			},
			func(s *Store) (int64, error) { return s.Load(format.Holds, "") },
			format.SeenKey, format.SeenValue(1 << 60), "the time of its last save is damaged",
		}
	}
	for name, r := range map[string]record{
		"time in the tree": seenAfter((*Store).alone),
		"time in the log":  seenAfter((*Store).together),
		"time in the journal": seenAfter(func(s *Store) {
			s.together()
			require.NoError(t, s.Save(append(numbered(1, 0, 3000), format.Entry{TAT: 5})))
			s.together()
		}),
		"time after a checkpoint": seenAfter(func(s *Store) {
			s.put(t, format.Entry{TAT: 6})
			require.NoError(t, s.checkpoint())
		}),
		"clock": {
			func(s *Store, n int64) error { return s.SaveClock(bytes.Repeat([]byte("clock"), int(n))) },
			func(s *Store) (int64, error) {
				found, err := s.LoadClock()
				n := len(found) / len("clock")
				require.True(t, bytes.Equal(bytes.Repeat([]byte("clock"), n), found))
				return int64(n), err
			},
			format.ClockKey, format.ClockValue([]byte("clock")), "its record of the clock is damaged",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, storePath(t))
			s.now.Store(1 << 50) // a checkpoint deletes buckets that are full
			require.Zero(t, r.stored(t, crash(t, s)))
			require.NoError(t, r.save(s, 7))
			require.EqualValues(t, 7, r.stored(t, crash(t, s)))
			for _, change := range []func() error{s.checkpoint, s.Compact} {
				require.NoError(t, change())
				require.EqualValues(t, 7, r.stored(t, crash(t, s)))
			}
			var copied bytes.Buffer
			_, err := s.Snapshot(&copied)
			require.NoError(t, err)
			require.EqualValues(t, 7, r.stored(t, filecopy.New(t, copied.Bytes())))
			require.NoError(t, r.save(s, 8))
			require.NoError(t, s.compactBusy())
			require.EqualValues(t, 8, r.stored(t, crash(t, s)))
			path := crash(t, s)
			_, err = verify(path)
			require.NoError(t, err)
			repaired, lost := salvage(t, path)
			require.Empty(t, lost)
			require.EqualValues(t, 8, r.stored(t, repaired))

			require.NoError(t, s.Close())
			require.EqualValues(t, 8, r.stored(t, s.path))
			filecopy.Edit(t, repaired, func(tx *bolt.Tx) error {
				r.value[5] ^= 4
				return tx.Bucket(format.MetaBucket).Put(r.key, r.value)
			})
			s = openStore(t, repaired)
			_, err = r.load(s)
			require.ErrorIs(t, err, format.ErrCorrupt)
			require.NoError(t, s.Close())
			_, err = verify(repaired)
			require.ErrorIs(t, err, format.ErrCorrupt)
			require.ErrorContains(t, err, r.damaged)
			repaired, _ = salvage(t, repaired)
			require.Zero(t, r.stored(t, repaired))
		})
	}
}
