package boltstore

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stint-go/stint/internal/boltfile"
	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/journal"
	"github.com/stint-go/stint/internal/testlength"
)

// TestBound: the number of buckets in memory bounds the journal.
func TestBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		resident    int
		most, least int64
	}{
		{1, 256 << 10, 6 * 256 << 10},
		{10_000, 320_000, 6 * 320_000},
		{1 << 17, 4 << 20, 8 << 20},
		{1 << 20, 32 << 20, 8 << 20},
		{1 << 30, 40 << 20, 8 << 20},
		{0, 16 << 20, 8 << 20},
	} {
		s, err := Open(storePath(t), storeNames, Options{LockTimeout: longLock, MaxResident: c.resident})
		require.NoError(t, err)
		require.Equal(t, []int64{c.most, c.least}, []int64{s.journal.most, s.journal.least}, c.resident)
		require.NoError(t, s.Close())
	}
	require.EqualValues(t, 8<<20, compactMin(32))
	require.EqualValues(t, 64<<20, compactMin(64))
	require.Equal(t, strconv.IntSize == 32, boltfile.OS().MaxSize == 128<<20)
}

// TestStep: a program with few buckets in memory has few in a transaction.
func TestStep(t *testing.T) {
	t.Parallel()
	for resident, transactions := range map[int]uint64{1000: 5, 10_000: 5, 0: 1} {
		s, err := Open(storePath(t), storeNames, Options{LockTimeout: longLock, MaxResident: resident})
		require.NoError(t, err)
		require.NoError(t, s.Save(numbered(2, 0, 1251)))
		before := filecopy.Commits(t, s.path)
		require.NoError(t, s.checkpoint())
		require.Equal(t, before+transactions, filecopy.Commits(t, s.path), resident)
		require.NoError(t, s.Close())
	}
}

// A step takes about stepTime, because saves wait for it.
func TestPacedStep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n    int
		took time.Duration
		want int
	}{
		{2000, 0, 4000},
		{2000, stepTime / 10, 4000},
		{2000, stepTime, 2000},
		{2000, 2 * stepTime, 1000},
		{2000, time.Hour, stepLeast},
		{8000, stepTime / 10, stepMost},
	} {
		var j journalState
		j.bound(1 << 20)
		j.pacedStep(c.n, c.took)
		require.Equal(t, c.want, j.step, c)
		j.bound(1000)
		j.pacedStep(c.n, c.took)
		require.Equal(t, indexLeast/stepPer, j.step, "few buckets in memory")
	}
}

// A save is small if saves are about to wait for the checkpoint, because the
// next save waits for what this one adds.
func TestRoom(t *testing.T) {
	t.Parallel()
	j := journalState{fresh: journal.New()}
	j.bound(1 << 17)
	rooms := []int{j.room()}
	require.Greater(t, j.room(), 1<<15)
	j.checkpointing = true
	for i := range 80 {
		j.fresh.Put(numbered(1, 5000*i, 5000)...)
		rooms = append(rooms, j.room())
	}
	require.True(t, slices.IsSortedFunc(rooms, func(a, b int) int { return cmp.Compare(b, a) }))
	require.Equal(t, roomLeast, j.room())
	j.progress = 0.9
	require.Greater(t, j.room(), 5*roomLeast)
}

// TestFlood: an endless stream of new ids leaves no long index if few buckets
// are in memory.
func TestFlood(t *testing.T) {
	t.Parallel()
	s, err := Open(storePath(t), storeNames, Options{LockTimeout: longLock, MaxResident: 1000})
	require.NoError(t, err)
	defer s.Close()
	for i := range testlength.Of(100, 80) {
		var es []format.Entry
		for j := range 1000 {
			es = append(es, entry(Key{1, fmt.Sprintf("client-%d-%d", i, j)}, 1<<60))
		}
		require.NoError(t, s.Save(es))
		for s.journal.is(overdueLocked) {
			runtime.Gosched()
		}
		require.True(t, s.journal.is(func(j *journalState) bool { return j.fresh.Size() < 6*indexLeast }))
	}
	for s.Stats().Checkpoints == 0 { // the first may still be under way
		runtime.Gosched()
	}
}
