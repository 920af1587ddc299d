package boltstore

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"github.com/stint-go/stint/internal/filecopy"
	"github.com/stint-go/stint/internal/format"
	"github.com/stint-go/stint/internal/journal"
	"github.com/stint-go/stint/internal/testlength"
)

// Close does not wait for the checkpoint of a long journal, begun or not. The
// next Open continues it, in steps.
func TestCloseLongJournal(t *testing.T) {
	changes := numbered(2, 0, 2*checkpointStep+1)
	for range testlength.Of(20, 2) { // the background may notice a due checkpoint before Close
		for _, state := range []string{"about to begin", "begun", "failed before"} {
			s := openStore(t, storePath(t))
			s.put(t, changes...)
			s.setMost(1)
			if state == "failed before" {
				s.journal.begin(s.saves.seq)
			}
			tx, err := s.inUse.file.DB.Begin(true) // no step ends before Close has begun
			require.NoError(t, err)
			go func() {
				<-s.stop
				tx.Rollback()
			}()
			s.wake()
			if state == "begun" {
				awaitWaiter("beginRWTx", nil)
			}
			require.NoError(t, s.Close())
			s = openStore(t, s.path)
			require.EqualValues(t, len(changes), s.Stats().Journaled, state)
			before := filecopy.Commits(t, s.path)
			s.journal.steps = checkpointStep
			require.NoError(t, s.checkpoint())
			require.GreaterOrEqual(t, filecopy.Commits(t, s.path), before+3, "each has at most checkpointStep buckets")
			s.sameAs(t, with(nil, changes...))
			require.NoError(t, s.Close())
		}
	}
}

// A checkpoint does not store a bucket that is full by then, and deletes it
// from the tree.
func TestCheckpointFullBuckets(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	past, lasting, unknown := Key{1, "past"}, Key{1, "lasting"}, Key{2, "unknown"}
	s.put(t, entry(past, 100), entry(lasting, 100))
	require.NoError(t, s.checkpoint())
	s.put(t, entry(past, 200), entry(lasting, 301), entry(unknown, 300))
	s.now.Store(300)
	require.NoError(t, s.checkpoint())
	require.Zero(t, s.Stats().Journal)
	s.sameAs(t, map[Key]int64{lasting: 301}, past, unknown)
}

// A failed checkpoint is not tried again at each save, and later saves do not
// make the journal grow without bound.
func TestCheckpointBackoff(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	idle(t, s)
	s.fs.SyncFile = func(*os.File) error { return nil }
	s.journal.most = 64 << 10
	due := func() bool { return s.journal.is((*journalState).dueLocked) }
	s.put(t, entry(Key{1, strings.Repeat("x", bolt.MaxKeySize+1)}, 1)) // too long for the tree
	s.journal.idle = idleSweeps
	for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		require.True(t, due())
		begun := time.Now()
		require.Error(t, s.checkpoint())
		require.Equal(t, wait*time.Second, s.journal.backoff)
		require.False(t, s.journal.retry.Before(begun.Add(wait*time.Second)))
		s.journal.retry = time.Now().Add(time.Hour)
		require.False(t, due())
		s.journal.retry = time.Now()
		s.journal.idle = 0 // as if a save had come
	}
	fillUp := func(next func(i int) []format.Entry) {
		t.Helper()
		var err error
		for i := 0; err == nil && i < 10_000; i++ {
			err = s.append(next(i))
		}
		require.ErrorContains(t, err, "is full: checkpoint: ")
	}
	fillUp(func(i int) []format.Entry { return numbered(2, 1<<30+i, 1) })
	require.InDelta(t, 2*s.journal.most, s.journal.fresh.Size(), 100)
	<-s.work // the signal of a due checkpoint
	s.journal.fresh = journal.New()
	again := numbered(2, 0, 2_000)
	fillUp(func(int) []format.Entry { return again })
	require.InDelta(t, 2*journalMost, s.journal.bytes, 1<<20)

	s.journal.old = journal.New() // an index that fits into the tree
	require.NoError(t, s.checkpoint())
	require.NoError(t, s.Stats().Err)
	require.False(t, due())
	s.journal.idle = idleSweeps
	require.True(t, due())
}

// A checkpoint is due if the journal is long, if it is many times as long as
// its index, or if saves have stopped.
func TestCheckpointDue(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	idle(t, s)
	due := func() bool { return s.journal.is((*journalState).dueLocked) }
	require.False(t, due())
	s.put(t, entry(Key{1, "a"}, 1<<40))
	bytes, most := s.journal.bytes, s.journal.most
	for range idleSweeps - 1 {
		require.False(t, due())
		require.NoError(t, s.sweep(1))
	}
	s.together()
	require.NoError(t, s.Save(numbered(1, 0, 1)))
	require.NoError(t, s.sweep(1))
	require.False(t, due(), "something was saved")
	for range idleSweeps {
		require.NoError(t, s.sweep(1))
	}
	require.True(t, due(), "nothing is saved any more")
	s.journal.idle, s.journal.bytes = 0, journalMost+1
	require.True(t, due(), "it is long")
	s.journal.bytes, s.journal.most = bytes, 4
	require.True(t, due(), "the index is too large")
	s.filter.Store(nil)
	s.next.Store(nil)
	require.NoError(t, s.sweep(1))
	require.Nil(t, s.filter.Load(), "a sweep does not hurry, because the checkpoint waits for it")
	s.journal.idle = 0
	s.journal.most = most
	require.False(t, due())
}

// Ids that never repeat do not make the journal or its index grow without
// bound, however fast they come. No save is lost.
func TestJournalBound(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	s.setMost(256 << 10)
	const save = 2_000
	most := int64(0)
	saves := testlength.Of(60, 16)
	for i := range saves {
		s.together()
		require.NoError(t, s.Save(numbered(1, 1e9+i*save, save)))
		s.journal.mu.Lock()
		for overdueLocked(&s.journal) {
			s.journal.mu.Unlock()
			runtime.Gosched()
			s.journal.mu.Lock()
		}
		n := s.journal.fresh.Size()
		if s.journal.old != nil {
			n += s.journal.old.Size()
		}
		s.journal.mu.Unlock()
		most = max(most, n)
	}
	const more = 3 // saves beyond the bound: one makes the checkpoint due, and two begin to wait
	require.Less(t, most, int64(4*(256<<10)+more*save*32))
	requireCrash(t, s, with(nil, numbered(1, 1e9, saves*save)...))
}

// A few changes go to the tree if they come alone or in pairs. They go to the
// journal if others came just before, or if the journal is not empty.
func TestSmallSaves(t *testing.T) {
	t.Parallel()
	s := openStore(t, storePath(t))
	s.alone()
	for _, journaled := range []int64{0, 0, 1} {
		require.NoError(t, s.Save(numbered(1, 0, 1)))
		require.EqualValues(t, journaled, s.Stats().Journaled)
		s.saves.last = time.Now().Add(time.Hour) // the next comes soon
	}
	s.alone()
	require.NoError(t, s.Save(numbered(1, 1, 1)))
	require.EqualValues(t, 2, s.Stats().Journaled, "an older change must not come after this")
	require.NoError(t, s.checkpoint())
	s.alone()
	require.NoError(t, s.Save(numbered(1, 0, smallSave+1)))
	require.EqualValues(t, smallSave+1, s.Stats().Journaled)
}
